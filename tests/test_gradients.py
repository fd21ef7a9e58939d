"""tools.capture --gradients: its moments against autograd through attention as a loop, on tiny random models."""

import sys

import numpy as np
import pytest

from tests.tiny_models import Numbers, load, looped_attention, needs_transformers, save_model, write_words
from tools.capture import __main__ as command

pytestmark = pytest.mark.filterwarnings("default")  # torch and transformers have their own
TOKENS, FAR, SEED = 40, 5, 7
SINKS = 4


@pytest.fixture
def captured(tmp_path, monkeypatch):
    """Runs the command on a model's directory: the dump's tensors and its metadata."""
    monkeypatch.setattr(command, "load_tokenizer", lambda _place: Numbers())
    text = write_words(tmp_path / "walk.txt")

    def run(folder, *arguments):
        from safetensors import safe_open

        options = ["--tokens", str(TOKENS), "--dtype", "float32", "--name", "m", "--out", str(tmp_path)]
        gradients = ["--gradients", "--far", str(FAR), "--seed", str(SEED)]
        code = command.main(["--model", str(folder), "--texts", str(text), *options, *gradients, *arguments])
        assert code == 0
        with safe_open(tmp_path / f"m_walk_{TOKENS}.safetensors", "numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118

    return run


def differentiate(model, ids):
    """Gradients (heads, tokens, dim) of each layer with respect to what far queries see K, K before its rotation and V
    as, of the second half's losses on labels that are drawn as the command draws them.
    """
    import torch

    module = sys.modules[type(model.model.layers[0].self_attn).__module__]
    rotation, turned, nudges = module.apply_rotary_pos_emb, [], {}

    def rotate(q, k, *rest, **options):
        nudge = torch.zeros_like(k, requires_grad=True)
        turned.append((nudge, rotation(q, k + nudge, *rest, **options)[1][0]))
        return rotation(q, k, *rest, **options)

    def see(layer, k, v):
        pre, far_k = turned[-1]
        zeros = torch.zeros_like(far_k, requires_grad=True), torch.zeros_like(v, requires_grad=True)
        nudges[layer] = zeros[0], pre, zeros[1]
        return (k, v), (far_k + zeros[0], v + zeros[1]), FAR

    module.apply_rotary_pos_emb = rotate
    try:
        with looped_attention(model, see):
            logits = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0, len(ids) // 2 :]
    finally:
        module.apply_rotary_pos_emb = rotation
    labels = torch.multinomial(logits.detach().softmax(-1), 1, generator=torch.Generator().manual_seed(SEED))[:, 0]
    (-logits.log_softmax(-1)[torch.arange(len(labels)), labels]).sum().backward()
    return {layer: [nudge.grad.reshape(2, TOKENS, 16).numpy() for nudge in own] for layer, own in nudges.items()}


@needs_transformers
@pytest.mark.parametrize("name", ["Gemma3Text", "Gemma2", "Llama 3", "Qwen2", "Mistral", "Cohere"])
def test_gradients_are_those_of_a_loop(captured, tmp_path, name):
    softcap = {"attn_logit_softcapping": 2.0} if name == "Gemma2" else {}
    folder = save_model(name, tmp_path / "model", **softcap)
    tensors, metadata = captured(folder)
    assert metadata["grad_far"] == str(FAR)
    for layer, found in differentiate(load(folder), tensors["ids"]).items():
        for stream, gradients in zip(("k", "k_pre", "v"), found, strict=True):
            moment = {"k": "k_grad", "k_pre": "k_grad_pre", "v": "v_grad"}[stream]
            got, rows = tensors[f"{moment}.{layer}"], tensors[f"{stream}.{layer}"]
            wanted = np.zeros((2, 16, 16))
            for head in range(2):
                for token in range(SINKS, TOKENS):
                    g = gradients[head, token] * np.linalg.norm(rows[token, head])
                    wanted[head] += np.outer(g, g) / (TOKENS - TOKENS // 2)
            assert got.dtype == np.float32
            assert np.trace(wanted[0]) > 0
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max(), err_msg=moment)


@needs_transformers
def test_gradients_leave_the_rest_of_a_dump_as_it_is(captured, tmp_path):
    folder = save_model("Gemma3Text", tmp_path / "model")
    tensors, metadata = captured(folder, "--check")
    text, out = str(tmp_path / "walk.txt"), str(tmp_path)
    options = ["--tokens", str(TOKENS), "--dtype", "float32", "--name", "m", "--out", out, "--force", "--check"]
    assert command.main(["--model", str(folder), "--texts", text, *options]) == 0
    from safetensors import safe_open

    with safe_open(tmp_path / f"m_walk_{TOKENS}.safetensors", "numpy") as file:
        more = {f"{name}.{layer}" for name in ("k_grad", "k_grad_pre", "v_grad") for layer in range(3)}
        assert tensors.keys() - set(file.keys()) == more
        for name in file.keys():  # noqa: SIM118
            np.testing.assert_allclose(tensors[name], file.get_tensor(name), rtol=1e-4, atol=1e-4, err_msg=name)
        assert float(metadata["perplexity"]) == pytest.approx(float(file.metadata()["perplexity"]), rel=1e-4)


@needs_transformers
def test_what_an_error_of_v_costs_is_in_o_cov(captured, tmp_path):
    folder = save_model("Qwen3", tmp_path / "model")
    tensors, _ = captured(folder, "--no-pre")
    assert not any(name.startswith("k_grad_pre") for name in tensors)
    error = np.random.default_rng(5).standard_normal(16)
    for layer, block in enumerate(load(folder).model.layers):
        weights = block.self_attn.o_proj.weight.detach().numpy()  # (width, q_heads * dim)
        for head in range(2):
            parts = [weights[:, 16 * q : 16 * q + 16] for q in range(4 * head, 4 * head + 4)]
            wanted = sum(np.square(part @ error).sum() for part in parts)
            assert error @ tensors[f"o_cov.{layer}"][head] @ error == pytest.approx(wanted, rel=1e-4)


@needs_transformers
def test_the_models_own_attention_is_put_back(tmp_path):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from tools.capture.attention import attend, replaced_attention

    model = load(save_model("Llama", tmp_path / "model"))
    before, names = model.config._attn_implementation, set(ALL_ATTENTION_FUNCTIONS)
    with replaced_attention(model, attend):
        assert model.config._attn_implementation != before
    assert model.config._attn_implementation == before
    assert set(ALL_ATTENTION_FUNCTIONS) == names


def test_texts_that_are_too_short_for_far_tokens_are_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text("{}")
    text = write_words(tmp_path / "walk.txt", FAR + SINKS - 1)
    monkeypatch.setattr(command, "load_tokenizer", lambda _place: Numbers())
    monkeypatch.setattr(command, "import_libraries", lambda: None)
    arguments = ["--model", str(tmp_path), "--texts", str(text), "--gradients", "--far", str(FAR)]
    assert command.main(arguments) == 2
    assert f"has {FAR + SINKS} tokens, want {FAR + SINKS + 1} at least" in capsys.readouterr().err
