"""tools.perplexity: its figures against a loop over queries on tiny random models, and what it refuses."""

import json

import ml_dtypes
import numpy as np
import pytest

from kvcodec.codecs.array import decode_array, encode_array
from kvcodec.codecs.dictionary import Dictionary, DictionarySet
from kvcodec.codecs.rotation import Rotation
from kvcodec.dictionary.artefact import Artefact, write_artefact
from kvcodec.layout import StreamId
from tests.tiny_models import Numbers, load, looped_attention, needs_transformers, save_model, write_words
from tools.capture.failure import CaptureError
from tools.capture.models import load_model
from tools.perplexity import __main__ as command
from tools.perplexity.coding import Coding
from tools.perplexity.figures import mean_of_blocks
from tools.perplexity.measured import Results
from tools.perplexity.report import write_between

pytestmark = pytest.mark.filterwarnings("default")  # torch and transformers have their own
TOKENS, SCORED, RESIDUAL, SINKS, BLOCK = 40, 12, 5, 2, 3


def make_dictionaries(path, layers):
    """A .kvdict file for K before its rotation and for V of some layers of the tiny Llama."""
    rng, rotation = np.random.default_rng(0), Rotation.of_base(10000, 16, 4)
    atoms = [rng.integers(-127, 128, (32, 16)).astype(np.int8) for _ in "kv"]
    own = DictionarySet(
        (
            Dictionary(atoms[0], tuple((layer, StreamId.K) for layer in layers), rotation=rotation),
            Dictionary(atoms[1], tuple((layer, StreamId.V) for layer in layers)),
        )
    )
    write_artefact(path, Artefact(own, {}))
    return path


# ---- codings and reports


def test_a_coding_is_for_both_streams_or_for_each(tmp_path):
    path = make_dictionaries(tmp_path / "a.kvdict", [1])
    both, each = Coding.parse("int4/token/g32"), Coding.parse(f"v=dict/s4 k=int4/channel/g64 @{path}")
    assert [str(both.specs[stream]) for stream in (StreamId.K, StreamId.V)] == ["int4/token/g32"] * 2
    assert str(each.specs[StreamId.K]) == "int4/channel/g64"
    assert each.name == "v=dict/s4 k=int4/channel/g64 @a.kvdict"
    assert [each.lacks(layer, StreamId.V) for layer in range(3)] == [True, False, True]
    assert not each.lacks(0, StreamId.K)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("int5/token/g32", "'int5' is unknown"),
        ("k=int4/token/g32", "want SPEC, or k=SPEC v=SPEC"),
        ("raw raw", "'raw' is one too many"),
        ("k=raw k=raw v=raw", "'k=raw' is one too many"),
        ("dict/s4", "which dictionaries"),
        ("dict/s4 @missing.kvdict", "No such file"),
        ("", "want SPEC"),
    ],
)
def test_codings_that_make_no_sense_are_refused(text, what):
    with pytest.raises(CaptureError, match=what):
        Coding.parse(text)


def test_sinks_are_not_in_the_scales_of_their_group():
    rows = np.random.default_rng(1).standard_normal((64, 1, 16)).astype(np.float32)
    loud = rows.copy()
    loud[:SINKS] *= 1000
    coding = Coding.parse("int4/channel/g64")
    quiet, coded = (coding.code(0, StreamId.K, x, ml_dtypes.bfloat16, SINKS).rows for x in (rows, loud))
    np.testing.assert_array_equal(coded[:SINKS], loud[:SINKS])
    assert np.abs(coded - loud)[SINKS:].max() < 0.3
    assert np.abs(quiet - rows)[SINKS:].max() < 0.3


def test_tables_go_between_marks_and_nowhere_else(tmp_path):
    path = tmp_path / "r.md"
    path.write_text("a\n<!-- p: written by x -->\nold\n<!-- /p -->\nb\n<!-- q: y -->\n<!-- /q -->\n")
    write_between(path, "p", None)
    assert "old" in path.read_text()
    write_between(path, "p", "new\nlines")
    assert path.read_text() == "a\n<!-- p: written by x -->\nnew\nlines\n<!-- /p -->\nb\n<!-- q: y -->\n<!-- /q -->\n"
    with pytest.raises(CaptureError, match="has no lines <!-- r: written"):
        write_between(path, "r", None)
    with pytest.raises(CaptureError, match="cannot write"):
        write_between(tmp_path / "missing.md", "p", None)


def test_what_can_be_refused_is_refused_before_a_model_is_looked_for(capsys):
    assert command.main(["--coding", "raw", "--write", "x.md"]) == 2
    assert command.main(["--coding", "nonsense"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "perplexity: --write and --mark go together"


def test_runs_of_tokens_are_what_an_error_comes_from():
    lot = np.random.default_rng(5)
    apart = lot.standard_normal(4000)
    mean, error = mean_of_blocks(apart, 1)
    assert mean == pytest.approx(apart.mean())
    assert error == pytest.approx(apart.std(ddof=1) / 4000**0.5)
    assert mean_of_blocks(apart, 32)[1] == pytest.approx(error, rel=0.3)
    together = np.repeat(lot.standard_normal(200), 20)  # twenty alike: as good as 200 numbers
    assert mean_of_blocks(together, 20)[1] == pytest.approx(4.5 * mean_of_blocks(together, 1)[1], rel=0.1)
    assert mean_of_blocks(np.ones(1), 32) == (1, 0)
    assert mean_of_blocks(np.array([0.0, 1.0]), 32) == (0.5, pytest.approx(0.5))


# ---- models that run


@pytest.fixture
def measured(tmp_path, monkeypatch, capsys):
    """Runs the command on a model's directory and the first words of a text: its JSON."""
    monkeypatch.setattr(command, "load_tokenizer", lambda _place: Numbers())
    text = write_words(tmp_path / "walk.txt")

    def run(folder, codings, *arguments, texts=(str(text),)):
        options = ["--tokens", TOKENS, "--scored", SCORED, "--residual", RESIDUAL, "--sinks", SINKS, "--block", BLOCK]
        options += arguments
        asked = [word for coding in codings for word in ("--coding", coding)]
        code = command.main(["--model", str(folder), "--texts", *texts, *asked, "--json", *map(str, options)])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    return run


def naive_figures(folder, coding):
    """KL divergence, loss and agreement on the scored tokens, from two runs of attention as a loop."""
    import torch

    model = load(folder)
    ids = torch.tensor([2, *np.random.default_rng(3).integers(4, 64, 100)[: TOKENS - 1].tolist()])

    def code(layer, stream, rows):
        own = coding.dictionaries and coding.dictionaries.find(layer, stream)
        given = rows.transpose(0, 1).contiguous().numpy()
        if coding.specs[stream].sparse:
            encoded = encode_array(given, coding.specs[stream], stream=stream, dictionary=own)
            decoded = decode_array(encoded, dtype=np.float32)
            decoded[:SINKS] = given[:SINKS]
        else:  # one scale a token: it makes no difference that the sinks are missing
            rest = decode_array(encode_array(given[SINKS:], coding.specs[stream], stream=stream), dtype=np.float32)
            decoded = np.concatenate([given[:SINKS], rest])
        return torch.from_numpy(decoded).transpose(0, 1)

    def see(layer, k, v):
        own = k.bfloat16().float(), v.bfloat16().float()
        return own, (code(layer, StreamId.K, own[0]), code(layer, StreamId.V, own[1])), RESIDUAL

    def see_raw(_layer, k, v):
        own = k.bfloat16().float(), v.bfloat16().float()
        return own, own, RESIDUAL

    logits = []
    for eyes in (see_raw, see):
        with looped_attention(model, eyes), torch.no_grad():
            logits.append(model(ids[None], use_cache=False).logits[0, -SCORED - 1 : -1].double().log_softmax(-1))
    raw, coded = (x.numpy() for x in logits)
    targets = ids[-SCORED:].numpy()
    more = raw[np.arange(SCORED), targets] - coded[np.arange(SCORED), targets]
    kl = (np.exp(raw) * (raw - coded)).sum(1)
    errors = [x.reshape(-1, BLOCK).mean(axis=1).std(ddof=1) / (SCORED // BLOCK) ** 0.5 for x in (kl, more)]
    return {
        "kl": kl.mean(), "kl_error": errors[0], "loss": more.mean(), "loss_error": errors[1],
        "agreement": (raw.argmax(1) == coded.argmax(1)).mean(),
        "perplexity": np.exp(-raw[np.arange(SCORED), targets].mean()),
    }  # fmt: skip


@needs_transformers
@pytest.mark.parametrize(
    ("name", "coding"),
    [
        ("Gemma3Text", "k=int8/token/g16 v=int4/token/g16"),
        ("Llama", "int4/token/g16"),
        ("Llama", "dict/s4/c6 @{}"),
    ],
)
def test_figures_are_those_of_a_loop(measured, tmp_path, name, coding):
    coding = coding.format(make_dictionaries(tmp_path / "all.kvdict", range(3)))
    folder = save_model(name, tmp_path / "model")
    found = measured(folder, [coding])
    text = found["texts"]["walk.txt"]
    own, wanted = found["codings"][0]["texts"]["walk.txt"], naive_figures(folder, Coding.parse(coding))
    assert wanted["kl"] > 1e-4
    assert text["perplexity"] == pytest.approx(wanted.pop("perplexity"), rel=1e-3)
    for figure, number in wanted.items():  # a row may round another way in 16 bits
        assert own[figure] == pytest.approx(number, rel=0.02, abs=1e-4), figure


@needs_transformers
def test_raw_costs_nothing_and_so_does_a_window_over_all(measured, tmp_path):
    folder = save_model("Gemma2", tmp_path / "model", attn_logit_softcapping=2.0)
    raw = measured(folder, ["raw", "int4/token/g16"])["codings"]
    wide = measured(folder, ["int2/token/g16"], "--residual", TOKENS)["codings"]
    for coding in (raw[0], wide[0]):
        own = coding["texts"]["walk.txt"]
        assert (own["kl"], own["loss"], own["agreement"], own["change"]) == (0, 0, 1, 0)
    assert raw[1]["texts"]["walk.txt"]["kl"] > 0
    assert raw[0]["bytes"]["vector"] == 32
    assert raw[0]["bytes"]["written"] > 32
    assert raw[0]["bytes"]["tables"] == 0
    assert raw[0]["bytes"]["ratio"] < 1 < raw[1]["bytes"]["ratio"]


@needs_transformers
def test_bytes_of_a_context_count_what_layers_hold(measured, tmp_path):
    folder, path = save_model("Gemma3Text", tmp_path / "model"), tmp_path / "one.kvdict"
    windows = load(folder).config.get_text_config()
    slides = [kind == "sliding_attention" for kind in windows.layer_types]
    assert any(slides)
    assert not all(slides)
    make_dictionaries(path, [n for n, kind in enumerate(slides) if not kind])
    plain, long = (measured(folder, [f"dict/s4 @{path}"], *more)["codings"][0]["bytes"]
                   for more in ((), ("--context", 4096)))  # fmt: skip
    held = np.where(slides, min(windows.sliding_window, 4096), 4096)
    raw = 2 * windows.head_dim
    coded = (2 + 4 * 3) * 64 / TOKENS  # a scale, four indices of 16 bits and coefficients of 8, of a block of 64
    sizes = np.where(slides, raw, coded)
    assert plain["vector"] == pytest.approx(sizes.mean())
    assert long["vector"] < plain["vector"]
    assert long["ratio"] > plain["ratio"]
    assert (long["vector"] - coded) / (raw - coded) == pytest.approx(held[slides].sum() / held.sum())


@needs_transformers
def test_a_dumps_ids_are_a_text_and_layers_without_dictionary_are_named(measured, tmp_path):
    from safetensors.numpy import save_file

    folder, dump, tables = save_model("Llama", tmp_path / "model"), tmp_path / "d.safetensors", tmp_path / "r.md"
    ids = np.array([2, *np.random.default_rng(3).integers(4, 64, 100)[: TOKENS - 1]], np.int32)
    save_file({"ids": ids}, dump, metadata={"text": "from a dump"})
    tables.write_text("<!-- p: here -->\n<!-- /p -->\n")
    path = make_dictionaries(tmp_path / "some.kvdict", [0, 2])
    texts = str(dump), str(tmp_path / "walk.txt")
    found = measured(folder, [f"dict/s4 @{path}"], "--write", tables, "--mark", "p", texts=texts)
    (coding,) = found["codings"]
    assert coding["raw_layers"] == {"k": [1], "v": [1]}
    assert coding["texts"]["from a dump"] == coding["texts"]["walk.txt"]
    assert coding["mean"]["kl"] == pytest.approx(coding["texts"]["walk.txt"]["kl"])
    assert coding["mean"]["kl_error"] == pytest.approx(coding["texts"]["walk.txt"]["kl_error"] / 2**0.5)
    assert "dict/s4 @some.kvdict: k of layers 1 is raw, without dictionary." in tables.read_text()


@needs_transformers
def test_results_that_are_kept_are_not_measured_again(measured, tmp_path, monkeypatch):
    folder, kept, tables = save_model("Llama", tmp_path / "model"), tmp_path / "r.jsonl", tmp_path / "r.md"
    other = write_words(tmp_path / "other.txt", seed=4)
    texts, codings = (str(tmp_path / "walk.txt"), str(other)), ["int4/token/g16", "int2/token/g16"]
    tables.write_text("<!-- p: here -->\n<!-- /p -->\n")
    whole = measured(folder, codings, texts=texts)
    measured(folder, codings[1:], "--results", kept, texts=texts[1:])  # of another process
    assert len(kept.read_text().splitlines()) == 1
    measured(folder, codings, "--results", kept, texts=texts[:1])
    loaded = []
    monkeypatch.setattr(command, "load_model", lambda *given: loaded.append(given) or load_model(*given))
    assert measured(folder, codings, "--results", kept, texts=texts) == whole
    assert (len(kept.read_text().splitlines()), len(loaded)) == (4, 1)
    assert measured(folder, codings, "--results", kept, "--write", tables, "--mark", "p", texts=texts) == whole
    assert len(loaded) == 1
    rows = [line.split(" | ") for line in tables.read_text().splitlines() if line.startswith("| int")]
    assert [row[1] for row in rows] == ["walk.txt", "other.txt", "all"] * 2
    measured(folder, codings[:1], "--results", kept, "--residual", 6, texts=texts[:1])  # is something else
    assert (len(kept.read_text().splitlines()), len(loaded)) == (5, 2)


@pytest.mark.parametrize("line", ["", "{", "[]", '{"of": {}, "measured": {"tokens": 3}}'])
def test_a_file_that_holds_no_results_is_refused(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(CaptureError, match=r"line 1 is no result"):
        Results(path, {}).read()
    assert path.read_text() == line + "\n"


@needs_transformers
def test_ids_of_another_model_and_short_texts_are_refused(tmp_path, capsys):
    from safetensors.numpy import save_file

    folder = save_model("Llama", tmp_path / "model")
    save_file({"ids": np.full(40, 64, np.int32)}, tmp_path / "d.safetensors")
    (tmp_path / "e.safetensors").write_bytes(b"no dump")
    for name, scored, what in (("d", 10, "has token 64, model has 64 words"), ("d", 40, "want more than the 40"),
                               ("e", 10, "no dump with ids")):  # fmt: skip
        arguments = ["--texts", str(tmp_path / f"{name}.safetensors"), "--scored", str(scored), "--coding", "raw"]
        assert command.main(["--model", str(folder), *arguments]) == 2
        assert what in capsys.readouterr().err
