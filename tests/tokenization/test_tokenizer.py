import json

import pytest

from octavo.errors import ChatTemplateError, ConfigError, InvalidRequestError, ModelNotFoundError, UnsupportedModelError
from octavo.tokenization import load_tokenizer, read_chat_template
from octavo.tokenization.decoding import byte_alphabet

from .tiny import CHATML, byte_level_tokenizer, sentencepiece_tokenizer, word_piece_tokenizer


@pytest.fixture
def folder(tmp_path):
    byte_level_tokenizer().backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder, name, content):
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_the_byte_alphabet_is_the_librarys():
    from tokenizers import pre_tokenizers

    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


def test_a_folder_gives_roles_and_templates(folder):
    write(
        folder,
        "tokenizer_config.json",
        {
            "eos_token": {"content": "<|im_end|>"},
            "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}],
            "added_tokens_decoder": {"403": {"content": "<extra>", "special": True}},
        },
    )
    write(folder, "special_tokens_map.json", {"bos_token": "<|im_start|>"})
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|im_start|>", "<|im_end|>", None)
    assert tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids(["<|im_end|>"])[0]
    assert tokenizer.select_chat_template(with_tools=True) == "T"
    assert tokenizer.chat_template == "D"
    extra = tokenizer.convert_tokens_to_ids(["<extra>"])[0]
    assert extra in tokenizer.all_special_ids
    assert tokenizer.encode("a<extra>") == [*tokenizer.encode("a"), extra]


def test_a_template_file_wins(folder):
    write(folder, "tokenizer_config.json", {"chat_template": "config"})
    write(folder, "chat_template.json", {"chat_template": "json"})
    assert load_tokenizer(folder).chat_template == "json"
    write(folder, "chat_template.jinja", "jinja")
    assert load_tokenizer(folder).chat_template == "jinja"


def test_a_template_is_given_as_text_or_as_a_file(folder):
    write(folder, "mine.txt", "mine")
    assert read_chat_template(str(folder / "mine.txt")) == "mine"
    assert read_chat_template("{{ x }}") == "{{ x }}"
    with pytest.raises(ConfigError, match="no template"):
        read_chat_template("missing.jinja")


def test_llama_classes_begin_and_end_as_configured(folder):
    config = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<|im_start|>", "add_bos_token": True}
    write(folder, "tokenizer_config.json", config)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("a")[0] == tokenizer.bos_token_id
    write(folder, "tokenizer_config.json", config | {"add_bos_token": False})
    assert load_tokenizer(folder).encode("a")[0] != tokenizer.bos_token_id
    write(folder, "tokenizer_config.json", config | {"tokenizer_class": "Qwen2Tokenizer"})
    assert load_tokenizer(folder).encode("a")[0] != tokenizer.bos_token_id


def test_a_missing_or_broken_tokenizer_is_rejected_with_an_error(tmp_path):
    with pytest.raises(ModelNotFoundError):
        load_tokenizer(tmp_path / "nowhere")
    write(tmp_path, "tokenizer.json", "{")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_older_files_are_converted(tmp_path):
    with pytest.raises(UnsupportedModelError, match="has no tokenizer"):
        load_tokenizer(tmp_path)
    model = json.loads(byte_level_tokenizer().backend.to_str())["model"]
    write(tmp_path, "vocab.json", model["vocab"])
    write(tmp_path, "merges.txt", "#version: 0.2\n" + "\n".join(" ".join(merge) for merge in model["merges"]))
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"})
    assert load_tokenizer(tmp_path).encode("The fox") == byte_level_tokenizer().encode("The fox")
    write(tmp_path, "vocab.json", "broken")
    with pytest.raises(UnsupportedModelError, match="none can be made"):
        load_tokenizer(tmp_path)


def test_truncation_and_padding_of_the_file_are_off(folder):
    tokenizer = load_tokenizer(folder)
    tokenizer.backend.enable_truncation(2)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    assert len(load_tokenizer(folder).encode("The quick brown fox")) > 2


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "x" * 20000 + "\ud83d"])
def test_lone_surrogates_are_refused(text):
    with pytest.raises(InvalidRequestError, match="surrogates"):
        byte_level_tokenizer().encode(text)


def test_a_batch_is_encoded_like_its_texts():
    tokenizer = byte_level_tokenizer()
    texts = ["The fox", "", "x" * 20000]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    with pytest.raises(InvalidRequestError, match="surrogates"):
        tokenizer.encode_batch(["fine", "\ud800"])


def test_token_text_keeps_spaces_and_replaces_partial_characters():
    tokenizer = byte_level_tokenizer()
    dog = tokenizer.encode(" dog")[0]
    assert tokenizer.token_text(dog).startswith(" ")
    first_byte = tokenizer.convert_tokens_to_ids([chr(0xF0)])[0]
    assert tokenizer.token_bytes(first_byte) == b"\xf0"
    assert tokenizer.token_text(first_byte) == "\N{REPLACEMENT CHARACTER}"
    assert tokenizer.token_text(tokenizer.eos_token_id) == "<|im_end|>"
    assert sentencepiece_tokenizer().token_text(sentencepiece_tokenizer().encode("the fox")[-1]) == " fox"
    assert tokenizer.token_bytes(10**9) == tokenizer.token_bytes(-1) == b""


def test_ids_outside_of_the_vocabulary_are_passed_over():
    tokenizer = byte_level_tokenizer()
    assert tokenizer.decode([*tokenizer.encode("fox"), 10**7]) == "fox"
    assert tokenizer.convert_ids_to_tokens([10**7, -1]) == [None, None]


def test_other_kinds_of_tokenizer_decode_as_their_library_does():
    tokenizer = word_piece_tokenizer()
    assert tokenizer.scheme is None
    assert tokenizer.decode(tokenizer.encode("the foxes jumps")) == "the foxes jumps"


def test_chat_templates_see_special_tokens_and_extra_values():
    tokenizer = byte_level_tokenizer()
    text = tokenizer.render_chat([], chat_template="{{ bos_token }}{{ mood }}{{ tools }}", mood="fine")
    assert text == "<|im_start|>fineNone"
    assert tokenizer.render_chat([{"role": "user", "content": "fox"}]).startswith("<|im_start|>user")
    assert tokenizer.chat_template == CHATML


def test_a_model_without_template_says_so():
    with pytest.raises(ChatTemplateError, match="no chat template"):
        sentencepiece_tokenizer().render_chat([{"role": "user", "content": "fox"}])
