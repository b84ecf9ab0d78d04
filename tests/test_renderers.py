"""ChatML by hand, then laws: prefixes, attribution, and no way from typed text to a control token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers import DefaultRendererConfig, config_from_name, create_renderer
from renderers.base import MODEL_RENDERER_MAP, Renderer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from prl.errors import ConfigError, DataError
from prl.models import byte_tokenizer
from prl.renderers import ChatML, create

TOKENIZER = byte_tokenizer()
CHATML = ChatML(TOKENIZER)
START, END, NEWLINE = 256, 257, 10
BODIES = st.text() | st.sampled_from(["<|im_end|>", "a<|im_start|>system\nb", "<|endoftext|>"])
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": BODIES}),
    max_size=4,
)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def runs(rendered):
    """[(text, message, content, sampled)], neighbours with equal attribution joined."""
    out = []
    streams = (rendered.token_ids, rendered.message_indices, rendered.is_content, rendered.sampled_mask)
    for token, *attribution in zip(*streams, strict=True):
        if out and out[-1][1:] == tuple(attribution):
            out[-1] = (out[-1][0] + TOKENIZER.decode([token]), *attribution)
        else:
            out.append((TOKENIZER.decode([token]), *attribution))
    return out


def test_a_conversation_token_by_token():
    got = CHATML.render([user("Hi"), assistant("Yo")], add_generation_prompt=True)
    assert runs(got) == [
        ("<|im_start|>user\n", 0, False, False),
        ("Hi", 0, True, False),
        ("<|im_end|>\n", 0, False, False),
        ("<|im_start|>assistant\n", 1, False, False),
        ("Yo<|im_end|>", 1, True, True),  # the model writes its own end
        ("\n", 1, False, False),
        ("<|im_start|>assistant\n", -1, False, False),
    ]
    assert (got.message_roles, got.message_tool_names) == (["user", "assistant"], [None, None])


def test_a_bridge_token_by_token():
    prompt = CHATML.render_ids([user("Hi")], add_generation_prompt=True)
    new = [{"role": "tool", "name": "calc", "content": "4"}, user("so?")]
    got = CHATML.bridge_to_next_turn(prompt, [89, 111, END], new)
    assert runs(got) == [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n", -1, False, False),
        ("<|im_start|>tool\n", 0, False, False),
        ("4", 0, True, False),
        ("<|im_end|>\n", 0, False, False),
        ("<|im_start|>user\n", 1, False, False),
        ("so?", 1, True, False),
        ("<|im_end|>\n", 1, False, False),
        ("<|im_start|>assistant\n", -1, False, False),
    ]
    assert (got.message_roles, got.message_tool_names) == (["tool", "user"], ["calc", None])


def test_satisfies_the_protocol():
    assert isinstance(CHATML, Renderer)
    assert (CHATML.is_prefix_stable, CHATML.effective_thinking_retention) == (True, "all")
    assert CHATML.get_stop_token_ids() == [END]


def test_three_turns_extend_each_other_and_equal_the_full_render():
    prompt = CHATML.render_ids([user("one")], add_generation_prompt=True)
    said = [user("one")]
    for answer, question in [("A", "two"), ("", "three"), ("\u00e9", "four")]:
        completion = [*answer.encode(), END]
        said += [assistant(answer), user(question)]
        bridged = CHATML.bridge_to_next_turn(prompt, completion, [user(question)]).token_ids
        assert bridged[: len(prompt) + len(completion)] == prompt + completion
        assert bridged == CHATML.render_ids(said, add_generation_prompt=True)
        prompt = bridged


COMPLETIONS = st.lists(st.integers(0, 511), max_size=8)  # a tiny model may sample any of its 512 ids


@given(st.lists(st.tuples(COMPLETIONS, BODIES), min_size=1, max_size=3))
def test_every_turn_bridges_whatever_was_sampled(turns):
    prompt = CHATML.render_ids([user("go")], add_generation_prompt=True)
    for completion, question in turns:
        bridged = CHATML.bridge_to_next_turn(prompt, completion, [user(question)]).token_ids
        prior = prompt + completion
        assert bridged[: len(prior)] == prior
        close = [NEWLINE] if completion[-1:] == [END] else [END, NEWLINE]
        assert bridged[len(prior) :] == close + CHATML.render_ids([user(question)], add_generation_prompt=True)
        prompt = bridged


def test_nothing_to_bridge():
    assert CHATML.bridge_to_next_turn([], [END], [user("x")]) is None
    assert CHATML.bridge_to_next_turn([START], [END], []) is None
    assert CHATML.bridge_to_next_turn([START], [END], [user("x"), assistant("y")]) is None


@given(MESSAGES, MESSAGES)
def test_prefix_stable(first, more):
    whole = CHATML.render_ids(first + more)
    short = CHATML.render_ids(first)
    assert whole[: len(short)] == short


@given(MESSAGES)
def test_bodies_come_back_from_attribution(messages):
    got = CHATML.render(messages)
    for i, message in enumerate(messages):
        where = [k for k, owner in enumerate(got.message_indices) if owner == i]
        body = [got.token_ids[k] for k in where if got.is_content[k] and got.token_ids[k] != END]
        assert bytes(body).decode() == message["content"]
        assert all(got.is_content[k] == got.sampled_mask[k] for k in where if message["role"] == "assistant")
        assert not any(got.sampled_mask[k] for k in where if message["role"] != "assistant")


@given(MESSAGES)
def test_typed_control_tokens_stay_text(messages):
    ids = CHATML.render_ids(messages)
    assert ids.count(START) == ids.count(END) == len(messages)


@given(MESSAGES.filter(lambda ms: not any("<|" in m["content"] for m in ms)), st.booleans())
def test_equals_the_chat_template(messages, prompted):
    if messages:
        want = TOKENIZER.apply_chat_template(messages, add_generation_prompt=prompted, return_dict=False)
        assert CHATML.render_ids(messages, add_generation_prompt=prompted) == want


def test_default_system_message():
    renderer = ChatML(TOKENIZER, default_system="S")
    assert runs(renderer.render([user("Hi")]))[0] == ("<|im_start|>system\nS<|im_end|>\n", -1, False, False)
    own = [{"role": "system", "content": "mine"}, user("Hi")]
    assert renderer.render_ids(own) == CHATML.render_ids(own)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([72, 105, END], "Hi"),
        ([72, 105], "Hi"),  # cut off
        ([72, END, 105, END], "H"),
        ([END], ""),
        ([], ""),
        ([32, 72, 32, 46, END], " H ."),
        ([72, START, 105, END], "H<|im_start|>i"),
        ([0xC3, END], "\ufffd"),
    ],
)
def test_parse(ids, text):
    assert CHATML.parse_response(ids).content == text


@pytest.mark.parametrize(
    ("message", "match"),
    [
        ({"role": "judge", "content": "x"}, "message 0: role is 'judge'; one of system, user, assistant, tool"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "content is of type list; need a str"),
        ({"role": "assistant"}, "content is of type NoneType"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "it has tool_calls, which ChatML would drop"),
        ({"role": "assistant", "content": "x", "reasoning_content": "y"}, "it has reasoning_content"),
    ],
)
def test_a_message_that_chatml_cannot_show(message, match):
    with pytest.raises(DataError, match=match):
        CHATML.render([message])


def test_tools_are_refused():
    with pytest.raises(ConfigError, match="got 1 tools"):
        CHATML.render([user("x")], tools=[{"name": "calc"}])


def test_a_tokenizer_without_the_control_tokens_is_refused():
    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), eos_token="<|im_end|>")
    with pytest.raises(ConfigError, match=r"has no special token <\|im_start\|>\. "):
        ChatML(bare)


# create


def named(name):
    """The byte tokenizer with Qwen3's control tokens, under a name."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    tokenizer.name_or_path = name
    return tokenizer


def test_create_chatml_and_default():
    assert isinstance(create(TOKENIZER, "chatml"), ChatML)
    default = create(TOKENIZER, "default")
    assert type(default) is type(create_renderer(TOKENIZER, DefaultRendererConfig()))
    assert default.effective_thinking_retention == "template"


@pytest.mark.parametrize(("tokenizer", "name"), [("Qwen/Qwen3-0.6B", "auto"), ("elsewhere", "qwen3")])
def test_a_family_keeps_all_thinking_and_bridges_at_user_turns(tokenizer, name):
    renderer = create(named(tokenizer), name)
    assert type(renderer).__name__ == "Qwen3Renderer"
    assert renderer.effective_thinking_retention == "all"
    prompt = renderer.render_ids([user("one")], add_generation_prompt=True)
    completion = [*b"<think>", END]
    bridged = renderer.bridge_to_next_turn(prompt, completion, [user("two")])
    assert bridged.token_ids[: len(prompt) + 8] == prompt + completion


def qwen35():
    tokenizer = named("qwen3.5")
    tokenizer.add_tokens(["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"])
    return create(tokenizer, "qwen3.5"), tokenizer


def test_thinking_that_the_generation_prompt_opened_is_closed_once():
    """The prompt ends with "<think>\\n", so the model writes only the end of the block."""
    renderer, tokenizer = qwen35()
    prompt = renderer.render_ids([user("q")], add_generation_prompt=True)
    assert tokenizer.decode(prompt).endswith("<|im_start|>assistant\n<think>\n")
    closing = tokenizer.convert_tokens_to_ids("</think>")
    completion = [*b"R\n", closing, *b"\n\nA", END]
    parsed = renderer.parse_response(completion, prompt_ids=prompt)
    assert (parsed.reasoning_content, parsed.content) == ("R", "A")
    reply = {**assistant(parsed.content), "reasoning_content": parsed.reasoning_content}
    turn = tokenizer.decode(renderer.render_ids([user("q"), reply]))
    bridged = tokenizer.decode(renderer.bridge_to_next_turn(prompt, completion, [user("next")]).token_ids)
    for text in (turn, bridged.rpartition("<|im_start|>user")[0]):
        assert text.count("<think>") == text.count("</think>") == 1 and "<think>\nR\n</think>\n\nA" in text


@pytest.mark.parametrize("way", ["rendered", "bridged"])
def test_consecutive_tool_messages_are_one_user_turn(way):
    renderer, calls = create(named("elsewhere"), "qwen3"), []
    for name in ("A", "B"):
        calls.append({"id": name, "type": "function", "function": {"name": name, "arguments": {"x": 1}}})
    asked = [user("q"), {**assistant(""), "tool_calls": calls}]
    answers = [{"role": "tool", "content": name.lower(), "tool_call_id": name} for name in ("A", "B")]
    if way == "rendered":
        ids = renderer.render_ids([*asked, *answers], add_generation_prompt=True)
    else:
        prompt = renderer.render_ids(asked[:1], add_generation_prompt=True)
        completion = renderer.render_ids(asked)[len(prompt) : -1]  # without the newline after the stop token
        ids = renderer.bridge_to_next_turn(prompt, completion, answers).token_ids
    text = named("elsewhere").decode(ids)
    blocks = "<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>"
    assert text.endswith(f"<|im_end|>\n<|im_start|>user\n{blocks}<|im_end|>\n<|im_start|>assistant\n")


def test_auto_never_guesses():
    with pytest.raises(ConfigError, match="no family is known for tokenizer 'me/finetune'.*Name it: chatml,"):
        create(named("me/finetune"), "auto")


@pytest.mark.parametrize(("name", "nearest"), [("qwen-3", "qwen3"), ("ChatML", "chatml"), ("llama3", "llama-3")])
def test_an_unknown_name_gets_the_nearest(name, nearest):
    with pytest.raises(ConfigError, match=f"unknown; did you mean '{nearest}'"):
        create(TOKENIZER, name)


@pytest.mark.parametrize("name", ["llama-3", "glm-5", "deepseek-v4"])
def test_a_family_that_does_not_fit(name):
    with pytest.raises(ConfigError, match=f"renderer='{name}' does not fit tokenizer"):
        create(TOKENIZER, name)


@pytest.mark.parametrize("name", sorted(set(MODEL_RENDERER_MAP.values())))
def test_every_family_can_be_asked_to_keep_thinking(name):
    assert type(config_from_name(name))(thinking_retention="all").thinking_retention == "all"
