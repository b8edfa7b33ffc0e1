"""Text from a language model: what goes in, how tokens are chosen, when it ends."""

from __future__ import annotations

from suture.generation.causal_lm import CausalLM as CausalLM
from suture.generation.sampling import Combined as Combined
from suture.generation.sampling import Greedy as Greedy
from suture.generation.sampling import History as History
from suture.generation.sampling import MinP as MinP
from suture.generation.sampling import RepetitionPenalty as RepetitionPenalty
from suture.generation.sampling import Sampler as Sampler
from suture.generation.sampling import Temperature as Temperature
from suture.generation.sampling import TopK as TopK
from suture.generation.sampling import TopP as TopP
from suture.generation.text import Tokenizer as Tokenizer
