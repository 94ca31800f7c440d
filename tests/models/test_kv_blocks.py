"""Blocks by a worker's own hashes, against the plain set of prefixes that they stand for."""

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.kv_blocks import HeldBlocks
from kvferry.models.prefix import BLOCK_TOKENS, block_hashes
from kvferry.models.prefix_keys import PrefixKeys

Prefix = tuple[int, ...]

# (page, the most pages of a prompt): so that prompts cross several blocks of 64 tokens
PAGES = st.sampled_from([(1, 200), (16, 20), (24, 20), (32, 10), (64, 6), (96, 5), (128, 4), (3, 90)])


@dataclass
class Tree:
    """What a radix cache does, in the plainest way: the set of held prefixes, and a made-up name for each
    prefix that has ever been held, a new one each time it is stored."""

    page: int
    names: dict[Prefix, int] = field(default_factory=dict)
    fresh: "count[int]" = field(default_factory=lambda: count(1000))

    def insert(self, prompt: Prefix) -> list[tuple[int, int | None, Prefix]]:
        """Store all whole pages; the new ones as (name, parent's name, tokens)."""
        stored = []
        parent = None
        for end in range(self.page, len(prompt) + 1, self.page):
            prefix = prompt[:end]
            if prefix not in self.names:
                self.names[prefix] = next(self.fresh)
                stored.append((self.names[prefix], parent, prompt[end - self.page : end]))
            parent = self.names[prefix]
        return stored

    def evict(self, prompt: Prefix, pages: int) -> list[int]:
        """Drop the last pages held of a prompt, and all that hangs on them."""
        held = self.held((*prompt, -1)) // self.page
        first = prompt[: (max(0, held - pages) + 1) * self.page]
        gone = [prefix for prefix in self.names if prefix[: len(first)] == first]
        return [self.names.pop(prefix) for prefix in sorted(gone, key=len, reverse=True)]

    def held(self, prompt: Prefix) -> int:
        """Whole pages held, but never the last token."""
        depth = 0
        while depth + self.page < len(prompt) and prompt[: depth + self.page] in self.names:
            depth += self.page
        return depth


def keys(prompt: Prefix) -> PrefixKeys:
    return PrefixKeys(prompt, block_hashes(prompt))


def store(blocks: HeldBlocks, stored: list[tuple[int, int | None, Prefix]], page: int, whole: bool) -> None:
    """As SGLang tells it: a chain of new blocks as one event, or each as one of its own."""
    if whole and stored:
        names, parents, parts = zip(*stored, strict=True)
        blocks.store(names, parents[0], [token for part in parts for token in part], page)
        return
    for name, parent, part in stored:
        blocks.store([name], parent, part, page)


@st.composite
def prompts(draw: st.DrawFn, page: int, pages: int) -> Prefix:
    """Made of few pieces, so that many share their beginnings, of any length."""
    runs = draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, page * pages // 2)), min_size=1, max_size=4)
    )
    return tuple(token for token, length in runs for _ in range(length))[: page * pages]


@given(st.data(), PAGES, st.booleans())
def test_it_answers_as_the_set_of_prefixes_does(
    data: st.DataObject, size: tuple[int, int], whole: bool
) -> None:
    page, pages = size
    tree, blocks = Tree(page), HeldBlocks(page)
    asked: list[Prefix] = []
    for _ in range(data.draw(st.integers(1, 12))):
        asked.append(data.draw(prompts(page, pages)))
        match data.draw(st.integers(0, 9)):
            case 0:
                tree.names.clear()
                blocks.clear()
            case 1 | 2 | 3:
                blocks.remove(tree.evict(asked[-1], data.draw(st.integers(1, pages))))
            case _:
                store(blocks, tree.insert(asked[-1]), page, whole)
        assert len(blocks) == len(tree.names)
    for prompt in asked:
        for cut in {len(prompt), data.draw(st.integers(1, len(prompt)))}:
            assert blocks.held(keys(prompt[:cut])) == tree.held(prompt[:cut])
    blocks.remove(list(tree.names.values()))
    assert len(blocks) == len(blocks._keys) == 0


@given(st.data(), PAGES)
def test_what_was_missed_can_only_make_it_say_less(data: st.DataObject, size: tuple[int, int]) -> None:
    page, pages = size
    tree, blocks = Tree(page), HeldBlocks(page)
    asked: list[Prefix] = []
    for _ in range(data.draw(st.integers(1, 10))):
        asked.append(data.draw(prompts(page, pages)))
        stored = tree.insert(asked[-1])
        if data.draw(st.booleans()):
            store(blocks, stored, page, whole=False)
    for prompt in asked:
        assert blocks.held(keys(prompt)) <= tree.held(prompt)


def test_blocks_of_one_prefix_under_two_names_are_held_until_both_are_gone() -> None:
    blocks, prompt = HeldBlocks(4), tuple(range(9))
    blocks.store([1, 2], None, prompt[:8], 4)
    blocks.store([11, 12], None, prompt[:8], 4)
    blocks.remove([2, 1])
    assert blocks.held(keys(prompt)) == 8
    blocks.remove([12, 12, 99])
    assert blocks.held(keys(prompt)) == 4
    blocks.store([11], None, prompt[:4], 4)
    blocks.remove([11])
    assert blocks.held(keys(prompt)) == 0


def test_the_last_token_is_always_computed() -> None:
    blocks = HeldBlocks(64)
    prompt = tuple(range(256))
    blocks.store([1, 2, 3, 4], None, prompt, 64)
    assert blocks.held(keys(prompt)) == 192
    assert blocks.held(keys((*prompt, 7))) == 256
    assert blocks.held(keys(prompt[:1])) == 0


def test_a_namespace_matches_no_plain_prompt_and_hands_itself_on() -> None:
    blocks, prompt = HeldBlocks(16), tuple(range(129))
    blocks.store([1], None, prompt[:16], 16, namespace="adapter")
    blocks.store([2, 3, 4, 5, 6, 7, 8], 1, prompt[16:128], 16)
    assert len(blocks) == 8
    assert blocks.held(keys(prompt)) == 0


def test_unknown_parents_and_blocks_beyond_the_limit_are_passed_over_and_counted() -> None:
    blocks, prompt = HeldBlocks(2, limit=3), tuple(range(21))
    blocks.store([7, 8], 6, prompt[:4], 2)
    assert (len(blocks), blocks.orphans) == (0, 2)
    blocks.store([1, 2, 3, 4, 5], None, prompt[:10], 2)
    assert (len(blocks), blocks.refused, blocks.held(keys(prompt))) == (3, 2, 6)
    blocks.store([9], None, [5, 5], 2)
    assert (len(blocks), blocks.refused) == (3, 3)


@pytest.mark.parametrize("tokens", [[1, 2, 3], [1, 2, 3, 1 << 70], ["a", "b", "c", "d"]])
def test_a_malformed_store_leaves_everything_as_it_was(tokens: list[int]) -> None:
    blocks = HeldBlocks(2)
    with pytest.raises((ValueError, OverflowError, TypeError)):
        blocks.store([1, 2], None, tokens, 2)
    assert len(blocks) == blocks.held(keys((1, 2, 3, 4, 5))) == 0
    with pytest.raises(ValueError, match="page of 0"):
        HeldBlocks(0)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3 * BLOCK_TOKENS))
def test_keys_differ_by_depth_and_agree_with_block_hashes(tokens: list[int]) -> None:
    prompt = keys(tuple(tokens))
    found = [prompt.at(depth) for depth in range(1, len(tokens) + 1)]
    assert len(set(found)) == len(found)
    assert tuple(found[BLOCK_TOKENS - 1 :: BLOCK_TOKENS]) == block_hashes(tokens)
    assert [prompt.at(depth) for depth in range(1, len(tokens) + 1)] == found
