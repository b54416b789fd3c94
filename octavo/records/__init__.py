"""Plain records that layers and processes exchange: requests, steps, outputs, plans. No behaviour, no tensors."""

from octavo.records.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from octavo.records.cache_spec import (
    CacheSpec,
    ChunkedLocal,
    Full,
    Latent,
    Shared,
    SlidingWindow,
    State,
    StateTensor,
    is_quantized,
)
from octavo.records.engine import (
    STEP_SIZES,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    RequestTimes,
    StepOutputs,
    TokenLogprobs,
)
from octavo.records.experts import RoutedExperts
from octavo.records.generation import ReasoningTags, RepetitionDetectionParams
from octavo.records.key_spans import BlockKey, KeySpan
from octavo.records.logprobs import FlatLogprobs, Logprob, PromptLogprobs, SampleLogprobs
from octavo.records.outputs import CompletionOutput, RequestOutput, RequestStateStats
from octavo.records.plan import (
    MAX_BAD_WORD_TOKENS,
    CacheGroup,
    CapturedRouting,
    Decision,
    MemoryPart,
    NgramDrafts,
    Plan,
    WeightGroup,
    recent_tokens,
)
from octavo.records.pooling import (
    DenseSpec,
    HeadRows,
    NormSpec,
    PooledData,
    PoolingParams,
    PoolingRequest,
    PoolingSpec,
    PoolingTask,
)
from octavo.records.pooling_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from octavo.records.prepared import PreparedRequest
from octavo.records.prompts import EmbedsPrompt, PromptEmbeds, PromptType, TextPrompt, TokensPrompt
from octavo.records.sampling_params import RequestOutputKind, SamplingParams
from octavo.records.start import StartPhase
from octavo.records.step import NAN_TOKEN, BlockUpdate, NewRow, RowLogprobs, Step, StepResult
from octavo.records.structured import GrammarBackend, StructuredOutputsParams
from octavo.records.token_ids import NO_TOKEN_IDS, TokenIds, as_token_ids, token_ids_from_bytes
