"""Decoding as plain loops, for generate() to be compared with: each step runs the model anew on whole sentences, one at
a time, without padding or a cache, and keeps its books in Python lists.

Where these loops draw at random they make the library's calls, so that one seed gives both the same draws.

Shapes: `B` sentences, `S` source and `T` target positions, `V` vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

PAD, START, EOS = 0, 1, 2

Rule = Callable[[list[int], torch.Tensor], torch.Tensor]  # a prefix and its next token's scores (V), to new scores
Source = dict[str, torch.Tensor] | None  # of one sentence; a language model has none
Finished = list[tuple[float, list[int]]]  # scores and sequences, best first


# --- sentences ---


def sources(lengths=(5, 1, 3), V=20, left=False) -> dict[str, torch.Tensor]:
    """Random sentences `(B, S)` of these lengths, padded on the right or left, and their mask."""
    tokens = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(3, V, tokens.shape)
    if left:
        rows = [row[kept].tolist() for row, kept in zip(ids, tokens, strict=True)]
        return dict(zip(("input_ids", "attention_mask"), padded_left(rows), strict=True))
    return {"input_ids": ids * tokens, "attention_mask": tokens.long()}


def each(batch: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """The batch's sentences one by one, without their padding."""
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        yield {"input_ids": ids[None, mask.bool()], "attention_mask": mask[None, mask.bool()]}


def padded_left(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists of tokens as one tensor `(B, T)`, and its mask."""
    longest = max(map(len, rows))
    ids = torch.tensor([[PAD] * (longest - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def trimmed(sequences: torch.Tensor) -> list[list[int]]:
    """The sequences up to their end; what fills the rest is the library's business."""
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in sequences.tolist()]


# --- rules: what the library calls logits processors ---


def without(scores: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    scores = scores.clone()
    scores[list(tokens)] = -torch.inf
    return scores


def no_repeated_ngram(n: int) -> Rule:
    """No `n` tokens in a row that stood in the sentence before."""

    def rule(prefix: list[int], scores: torch.Tensor) -> torch.Tensor:
        last = prefix[len(prefix) - n + 1 :]
        starts = range(len(prefix) - n + 1)
        return without(scores, [prefix[i + n - 1] for i in starts if prefix[i : i + n - 1] == last])

    return rule


def never(*phrases: list[int]) -> Rule:
    """None of these phrases."""

    def rule(prefix: list[int], scores: torch.Tensor) -> torch.Tensor:
        return without(scores, [p[-1] for p in phrases if len(p) == 1 or prefix[-len(p) + 1 :] == p[:-1]])

    return rule


def less_of_what_was_said(penalty: float) -> Rule:
    """Tokens of the prefix lose: positive scores are divided by the penalty, negative ones multiplied."""

    def rule(prefix: list[int], scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for token in set(prefix):
            scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
        return scores

    return rule


def forced(token: int, length: int) -> Rule:
    """This token, surely, after `length` others."""

    def rule(prefix: list[int], scores: torch.Tensor) -> torch.Tensor:
        if len(prefix) != length:
            return scores
        return without(torch.zeros_like(scores), [other for other in range(len(scores)) if other != token])

    return rule


def no_end_before(length: int) -> Rule:
    """No end while the sequence is shorter than `length`."""
    return lambda prefix, scores: without(scores, [EOS]) if len(prefix) < length else scores


def tempered(temperature: float) -> Rule:
    return lambda prefix, scores: scores / temperature


def best_only(k: int) -> Rule:
    """The `k` best tokens."""
    return lambda prefix, scores: scores.masked_fill(scores < scores.sort(descending=True).values[k - 1], -torch.inf)


# No token twice: a random model would otherwise say one over and over, and there would be little to compare.
NO_REPEATS = {"no_repeat_ngram_size": 1}
no_repeats = no_repeated_ngram(1)


def ruled(rules: Sequence[Rule], prefixes: Sequence[list[int]], scores: torch.Tensor) -> torch.Tensor:
    """Scores `(prefixes, V)` under the rules, one after another."""
    rows = []
    for prefix, row in zip(prefixes, scores, strict=True):
        for rule in rules:
            row = rule(list(prefix), row)
        rows.append(row)
    return torch.stack(rows)


# --- loops ---


@torch.no_grad()
def next_logits(model, source: Source, prefixes: Sequence[Sequence[int]]) -> torch.Tensor:
    """The next token's logits, `(prefixes, V)`, of one source sentence; everything is computed anew."""
    ids = torch.tensor(prefixes, device=model.device)
    if source is None:
        return model(input_ids=ids, use_cache=False).logits[:, -1].float()
    source = {name: x.to(model.device).expand(len(prefixes), -1) for name, x in source.items()}
    return model(**source, decoder_input_ids=ids, use_cache=False).logits[:, -1].float()


def next_log_probs(model, source: Source, prefixes, rules: Sequence[Rule] = (no_repeats,)) -> torch.Tensor:
    """Their logarithms of probabilities, under the rules."""
    return ruled(rules, prefixes, next_logits(model, source, prefixes).log_softmax(-1))


def plain_greedy(model, source: Source, max_new_tokens: int, prefix=(START,), rules=(no_repeats,)) -> list[int]:
    """The prefix and what greedy search puts after it."""
    sequence = list(prefix)
    for _ in range(max_new_tokens):
        sequence.append(int(ruled(rules, [sequence], next_logits(model, source, [sequence])).argmax()))
        if sequence[-1] == EOS:
            break
    return sequence


def plain_sampling(model, batch: Sequence[Source], max_new_tokens: int, prefixes=None, rules=()) -> list[list[int]]:
    """Sequences drawn for a batch, one draw a step for all; those that have ended are drawn for until the last has."""
    sequences = [list(prefix) for prefix in prefixes or [(START,)] * len(batch)]
    ended = [False] * len(sequences)
    for _ in range(max_new_tokens):
        rows = [ruled(rules, [s], next_logits(model, source, [s])) for source, s in zip(batch, sequences, strict=True)]
        drawn = torch.multinomial(torch.cat(rows).softmax(-1), 1)[:, 0].tolist()
        for i, token in enumerate(drawn):
            if not ended[i]:
                sequences[i].append(token)
                ended[i] = token == EOS
        if all(ended):
            break
    return sequences


def plain_beams(
    model,
    batch: Sequence[Source],
    num_beams: int,
    max_new_tokens: int,
    length_penalty: float = 1.0,
    early_stopping: bool | str = "never",
    prefixes=None,
    rules: Sequence[Rule] = (no_repeats,),
    sample: bool = False,
) -> list[Finished]:
    """
    Each sentence's finished sequences and their scores, sum log p / n^length_penalty over n new tokens, best first.

    Args:
        early_stopping: "never" is canonical beam search; True ends a sentence with its `num_beams`-th finished
            sequence; False ends it when the best running one, were it as long as now, would come after all of these.
        sample: draw candidates, without replacement, in the place of taking the best.
    """
    running: list[Finished] = [[(0.0, list(prefix))] for prefix in prefixes or [(START,)] * len(batch)]
    finished: list[Finished] = [[] for _ in batch]
    done = [False] * len(batch)
    for n in range(1, max_new_tokens + 1):
        candidates = []  # of each sentence, a list of (score, sequence)
        totals = []
        for source, beams in zip(batch, running, strict=True):
            log_probs = next_log_probs(model, source, [sequence for _, sequence in beams], rules)
            total = log_probs.double() + torch.tensor([score for score, _ in beams], device=model.device)[:, None]
            V = log_probs.shape[1]
            totals.append(total.new_full((num_beams * V,), -torch.inf))
            totals[-1][: total.numel()] = total.flatten()
        if sample:
            chosen = torch.multinomial(torch.stack(totals).float().softmax(-1), 2 * num_beams).tolist()
        else:
            chosen = [total.argsort(descending=True)[: 2 * num_beams].tolist() for total in totals]
        for beams, total, indices in zip(running, totals, chosen, strict=True):
            extended = [(total[i].item(), [*beams[i // V][1], i % V]) for i in indices if total[i] > -torch.inf]
            candidates.append(sorted(extended, reverse=True))
        for i, extended in enumerate(candidates):
            running[i] = [(score, sequence) for score, sequence in extended if sequence[-1] != EOS][:num_beams]
            if done[i]:
                continue
            for score, sequence in extended[:num_beams]:
                if sequence[-1] == EOS or n == max_new_tokens:
                    finished[i].append((score / n**length_penalty, sequence))
            finished[i] = sorted(finished[i], reverse=True)[:num_beams]
            if len(finished[i]) == num_beams and running[i] and early_stopping != "never":
                best = running[i][0][0] / n**length_penalty
                done[i] = early_stopping is True or best <= finished[i][-1][0]
        if all(done):
            break
    return finished


def plain_beam_search(model, source: Source, num_beams: int, max_new_tokens: int, *args, prefix=(START,), **settings):
    """`plain_beams` of one sentence."""
    return plain_beams(model, [source], num_beams, max_new_tokens, *args, prefixes=[prefix], **settings)[0]


def plain_speculation(model, assistant, source: Source, max_new_tokens: int, num_drafted: int, prefix=(START,)):
    """
    Speculative sampling (Leviathan et al. 2023, algorithm 1): the assistant draws `num_drafted` tokens, the model keeps
    each with probability min(1, p / q) up to the first that it refuses, and draws the next from what is left of p.
    """
    sequence, length = list(prefix), len(prefix) + max_new_tokens
    while len(sequence) < length and EOS not in sequence[len(prefix) :]:
        draft, q = list(sequence), []
        for _ in range(min(num_drafted, length - len(sequence) - 1)):
            q.append(next_logits(assistant, source, [draft])[0].softmax(-1))
            draft.append(int(torch.multinomial(q[-1][None], 1)))
            if draft[-1] == EOS:
                break
        ends = range(len(sequence), len(draft) + 1)
        p = [next_logits(model, source, [draft[:end]])[0].softmax(-1) for end in ends]
        new = draft[len(sequence) :]
        kept = 0
        if new:
            ratios = torch.tensor([(p[i][token] / q[i][token]).item() for i, token in enumerate(new)])
            refused = (torch.rand(len(new)) > ratios).tolist()
            kept = refused.index(True) if True in refused else len(new)
        rest = p[kept]
        if kept < len(new):
            rest = (p[kept] - q[kept]).clamp(min=0)
            rest = rest / rest.sum()
        sequence += [*new[:kept], int(torch.multinomial(rest[None], 1))]
        if EOS in sequence[len(prefix) :]:
            return sequence[: sequence.index(EOS, len(prefix)) + 1]
    return sequence[:length]
