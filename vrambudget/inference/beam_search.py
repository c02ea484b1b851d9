"""`generate(num_beams=...)`: the loop of `_beam_search`, with K beams and 2 K candidates a prompt.

    sequences        [B, K, prompt + new] twice: those that run, and the best that are finished
    scores           [B, K], and which beam each token came from [B, K, new] int32
    log_probs        [B K, V] float32: the logits, their log-softmax, and the sum with the scores;
                     sampled: its softmax, and draws
    reorder_cache    keys and values of each layer, copied in the order of the beams

Source: generation/utils.py of transformers 5.17 (_beam_search and the functions that it calls).
Not modelled: early_stopping and the penalties that are not its defaults.
"""

from vrambudget.dtypes import DType, bool_, float32, int32, int64
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.inference.sampling import Sampling
from vrambudget.inference.settings import GenerateSettings, Marker
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import arange, made
from vrambudget.ops.ordering import topk
from vrambudget.ops.sampling import multinomial, topk_of_rows
from vrambudget.ops.shape import cat, clone
from vrambudget.ops.softmax import log_softmax, softmax


class BeamSearch(Sampling):
    """_beam_search, step by step; attributes are its local variables."""

    constant = (
        *("input_ids", "logits", "log_probs", "topk_log_probs", "topk_running_sequences"),
        *("topk_running_beam_indices", "hits", "running_sequences", "running_beam_scores"),
        *("running_beam_indices", "sequences", "beam_scores", "beam_indices"),
        *("is_sent_finished", "beam_idx", "unsatisfied"),
    )
    growing = ()

    def start(self, settings: GenerateSettings) -> None:
        """Make what the loop begins with."""
        B, K, new = settings.batch, settings.num_beams, settings.new
        self.length = settings.prompt
        self.candidates = 2 * K
        whole = B, K, settings.prompt + new
        self.top_num_beam_mask = made("to_device", (self.candidates,), bool_)
        self.running_sequences = made("full", whole, int64)
        self.sequences = made("clone", whole, int64)
        self.running_beam_scores = made("zeros", (B, K), float32)
        self.beam_scores = made("full", (B, K), float32)
        self.is_sent_finished = made("zeros", (B, K), bool_)
        self.unsatisfied = made("ones", (B, 1), bool_)
        self.hits = made("zeros", (B, K), bool_)
        self.running_beam_indices = made("full", (B, K, new), int32)
        self.beam_indices = made("clone", (B, K, new), int32)
        self.logits: Tensor | None = None
        self.log_probs: Tensor | None = None
        self.topk_log_probs: Tensor | None = None
        self.topk_running_sequences: Tensor | None = None
        self.topk_running_beam_indices: Tensor | None = None
        self.beam_idx: Tensor | None = None

    def decode(self, mark: Marker, phase: str) -> None:
        """Run the newest token of each beam through the model and choose the next ones."""
        B, K, whole = self.running_sequences.shape
        flat = self.running_sequences.viewed((B * K, self.length), (whole, 1))
        self.input_ids = flat
        del flat
        super().decode(mark, phase)

    def after_prefill(self) -> None:
        """Do nothing: experts run as before."""

    def choose(self, outputs: list[Outputs]) -> None:
        """Take the step's last logits and choose the beams that go on."""
        self.lengthen_inputs()
        rows, _, vocabulary = outputs[0].logits.shape
        B, K, _ = self.running_sequences.shape
        self.logits = made("to_copy", (rows, vocabulary), float32)
        self.log_probs = log_softmax(self.logits)
        self.log_probs = self.processed(self.log_probs, self.length)
        if self.settings.return_logits:
            self.kept.append(clone(self.logits))
        if self.settings.return_scores:
            self.kept.append(clone(self.log_probs))
        outputs.clear()  # del model_outputs
        self.log_probs = made("add", (B, K, vocabulary), float32)
        self._continue(self.log_probs.viewed((B, K * vocabulary), None))
        self.hits = _reached(B * self.candidates)
        self._running(K)
        self._finished(K)
        if self.cache is not None:
            view = self.running_beam_indices.viewed((B * K,), (self.running_beam_indices.shape[2],))
            self.beam_idx = view
            del view
            self.cache.reorder()
        self.length += 1
        self._early_stop()
        _any_goes_on()

    def keep_last(self) -> None:
        """Do nothing: copies are kept."""

    def returned(self) -> object:
        """Return what `generate` returns: the best ids, or all else that was asked for."""
        if self.kept:
            return self.sequences, self.beam_scores, self.beam_indices, self.kept, self.cache
        return self.sequences

    def _continue(self, log_probs: Tensor) -> None:
        """_get_top_k_continuations."""
        B = log_probs.shape[0]
        n = B, self.candidates
        if self.settings.sample:
            topk_indices = multinomial(softmax(log_probs), self.candidates)
            topk_log_probs = made("gather", n, float32)
        else:
            topk_log_probs, topk_indices = topk_of_rows(log_probs, self.candidates)
        beams = made("floor_divide", n, int64)
        topk_running_beam_indices = _gathered(self.running_beam_indices, self.candidates)
        topk_running_sequences = _gathered(self.running_sequences, self.candidates)
        topk_ids = made("remainder", n, int64)
        numbers = arange(B)
        batch_offset = made("mul", (B, 1), int64)
        del numbers
        modified = made("add", n, int64)
        del topk_indices, beams, topk_ids, batch_offset, modified
        self.topk_log_probs = topk_log_probs
        self.topk_running_sequences = topk_running_sequences
        self.topk_running_beam_indices = topk_running_beam_indices

    def _running(self, K: int) -> None:
        """_get_running_beams_for_next_iteration."""
        sequences, indices = self.topk_running_sequences, self.topk_running_beam_indices
        assert sequences is not None  # noqa: S101 - _continue has run
        assert indices is not None  # noqa: S101
        n = sequences.shape[:2]
        casted = made("to_dtype", n, float32)
        penalties = made("mul", n, float32)
        del casted
        topk_running_log_probs = made("add", n, float32)
        del penalties
        next_topk_indices = _best(topk_running_log_probs, K)
        running_sequences = _gathered(sequences, K)
        running_beam_scores = _gathered(topk_running_log_probs, K)
        running_beam_indices = _gathered(indices, K)
        del topk_running_log_probs, next_topk_indices
        self.running_sequences = running_sequences
        self.running_beam_scores = running_beam_scores
        self.running_beam_indices = running_beam_indices

    def _finished(self, K: int) -> None:
        """_update_finished_beams."""
        added, indices = self.topk_running_sequences, self.topk_running_beam_indices
        assert added is not None  # noqa: S101 - _continue has run
        assert indices is not None  # noqa: S101
        B, n = added.shape[0], added.shape[:2]
        did_finish = made("bitwise_and", n, bool_)
        topk_log_probs = made("div", n, float32)
        every = made("all", (B, 1), bool_)
        are_full = made("bitwise_and", (B, 1), bool_)
        del every
        _penalty((B, 1), float32)
        inverted = made("bitwise_not", (B, 1), bool_)
        casted = made("to_dtype", (B, 1), float32)
        del inverted
        scaled = made("mul", (B, 1), float32)
        del casted, scaled
        others = made("bitwise_not", n, bool_)
        scaled = made("mul", n, float32)
        del others, scaled
        merged_sequences = cat([self.sequences, added], dim=1)
        merged_scores = cat([self.beam_scores, topk_log_probs], dim=1)
        merged_beam_indices = cat([self.beam_indices, indices], dim=1)
        merged_finished = cat([self.is_sent_finished, did_finish], dim=1)
        topk_merged_indices = _best(merged_scores, K)
        sequences = _gathered(merged_sequences, K)
        beam_scores = _gathered(merged_scores, K)
        beam_indices = _gathered(merged_beam_indices, K)
        is_sent_finished = _gathered(merged_finished, K)
        del topk_log_probs, did_finish, are_full, merged_sequences, merged_scores
        del merged_beam_indices, merged_finished, topk_merged_indices
        self.sequences, self.beam_scores = sequences, beam_scores
        self.beam_indices, self.is_sent_finished = beam_indices, is_sent_finished

    def _early_stop(self) -> None:
        """_check_early_stop_heuristic."""
        B, K = self.beam_scores.shape
        best = made("div", (B, 1), float32)
        worst, places = made("min", (B, 1), float32), empty((B, 1), int64)
        del places
        number = made("full", (), float32)
        worst_finished = made("where", (B, K), float32)
        del number, worst
        is_better = made("gt", (B, K), bool_)
        any_better = made("any", (B, 1), bool_)
        del is_better
        unsatisfied = made("bitwise_and", (B, 1), bool_)
        del any_better, best, worst_finished
        self.unsatisfied = unsatisfied


def _gathered(x: Tensor, count: int) -> Tensor:
    """_gather_beams: torch.take_along_dim, whose indices are made as long as the rest of x."""
    shape = x.shape[0], count, *x.shape[2:]
    indices = made("take_along_dim", shape, int64)
    gathered = made("take_along_dim", shape, x.dtype)
    del indices
    return gathered


def _best(scores: Tensor, count: int) -> Tensor:
    """torch.topk(scores, k=count)[1]."""
    values, indices = topk(scores, count)
    del values
    return indices


def _penalty(shape: tuple[int, ...], dtype: DType) -> None:
    casted = made("to_dtype", shape, dtype)
    scaled = made("mul", shape, dtype)
    del casted, scaled


def _reached(rows: int) -> Tensor:
    """StoppingCriteriaList with MaxLengthCriteria."""
    is_done = made("full", (rows,), bool_)
    reached = made("full", (rows,), bool_)
    either = made("bitwise_or", (rows,), bool_)
    del reached, is_done
    return either


def _any_goes_on() -> None:
    """_beam_search_has_unfinished_sequences, read back."""
    improvement = made("any", (), bool_)
    every = made("all", (), bool_)
    both = made("bitwise_and", (), bool_)
    del every
    is_open = made("bitwise_not", (), bool_)
    del both
    every = made("all", (), bool_)
    goes_on = made("bitwise_not", (), bool_)
    del every
    first = made("bitwise_and", (), bool_)
    result = made("bitwise_and", (), bool_)
    del first, result, goes_on, is_open, improvement
