"""The user's own model and data, as they are compared."""

from __future__ import annotations

from transformers import CLIPConfig, GPT2Config, LlamaConfig

from scaling.parity.own_model import switch_dropout_off


def test_no_dropout_is_left_in_any_configuration() -> None:
    gpt2 = GPT2Config()
    assert gpt2.resid_pdrop == 0.1, "the library's default, or this shows nothing"
    switch_dropout_off(gpt2)
    assert (gpt2.resid_pdrop, gpt2.embd_pdrop, gpt2.attn_pdrop) == (0.0, 0.0, 0.0)
    llama = LlamaConfig(attention_dropout=0.2)
    switch_dropout_off(llama)
    assert llama.attention_dropout == 0.0
    inner = CLIPConfig(text_config={"attention_dropout": 0.3}, vision_config={"attention_dropout": 0.4})
    switch_dropout_off(inner)
    assert (inner.text_config.attention_dropout, inner.vision_config.attention_dropout) == (0.0, 0.0)
