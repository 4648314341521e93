"""The queue alone, under requests of all sizes that come, fail and leave at random."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from datransformer.serve.batching import AnswerError, Batcher, QueueFullError

BATCH, QUEUE = 8, 40


class Model:
    """Answers a number with its square, fails on multiples of 17, and keeps what it was asked."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        if any(item % 17 == 0 for item in items):
            raise ValueError("a multiple of 17")
        return [item * item for item in items]


@pytest.mark.parametrize("seed", range(5))
def test_everyone_gets_their_own_answer_whatever_the_others_do(seed: int) -> None:
    draw, model = random.Random(seed), Model()

    async def ask(batcher: Batcher, number: int) -> str:
        await asyncio.sleep(draw.random() * 0.3)
        items = [number * 100 + place for place in range(draw.choice((1, 1, 1, 2, 5, 12)))]
        try:
            async with asyncio.timeout(draw.choice((None, None, None, 0.001))):
                answers = await batcher.ask(items, len(items))
        except TimeoutError:
            return "left"
        except QueueFullError:
            return "refused"
        except AnswerError:
            assert any(item % 17 == 0 for item in items)
            return "failed"
        assert answers == [item * item for item in items]
        return "answered"

    async def all_of_them() -> list[str]:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(model, batch=BATCH, wait=0.001, queue=QUEUE)
            batcher.start(thread)
            outcomes = await asyncio.gather(*(ask(batcher, number) for number in range(400)))
            await batcher.close()
            assert batcher.waiting == 0
            with pytest.raises(QueueFullError):
                await batcher.ask([1], 1)
            return list(outcomes)

    outcomes = asyncio.run(all_of_them())
    assert outcomes.count("answered") > 50
    assert {"failed", "answered"} <= set(outcomes)
    for batch in model.batches:
        assert len(batch) <= BATCH or len({item // 100 for item in batch}) == 1  # a large request is alone


def test_a_model_that_answers_too_little_answers_nobody() -> None:
    async def ask() -> list[Any]:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(lambda items: items[:-1], batch=BATCH, wait=0.001, queue=QUEUE)
            batcher.start(thread)
            outcomes = await asyncio.gather(*(batcher.ask([number], 1) for number in range(5)), return_exceptions=True)
            await batcher.close()
            return outcomes

    assert all(isinstance(outcome, AnswerError) for outcome in asyncio.run(ask()))


def test_a_batch_that_is_full_does_not_wait() -> None:
    async def ask() -> float:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(Model(), batch=4, wait=30, queue=QUEUE)
            batcher.start(thread)
            started = asyncio.get_running_loop().time()
            await asyncio.gather(*(batcher.ask([number], 1) for number in (1, 2, 3, 4)))
            return asyncio.get_running_loop().time() - started

    assert asyncio.run(ask()) < 10
