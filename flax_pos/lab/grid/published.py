"""What papers say of position schemes, each with how a grid checks it."""

from flax_pos.lab.grid.claims import Claim, Finding, ahead, change, check_claim, slower, within
from flax_pos.lab.grid.results import GridRun

KAZEMNEJAD = "Kazemnejad et al. 2023, arXiv 2305.19466 (their released runs, lengths 21-40)"
PRESS = "Press et al. 2021, arXiv 2108.12409"
LIU = "Liu et al. 2023, arXiv 2306.00946"

CLAIMS = (
    Claim(
        text="On counting copy past the trained length, no positions are far ahead of ALiBi",
        source=KAZEMNEJAD,
        published="exact match .986 and .289",
        task="copy",
        labels=("none", "alibi"),
        check=ahead("exact past", by=0.2),
    ),
    Claim(
        text="On counting copy, ALiBi is ahead of RoPE",
        source=KAZEMNEJAD,
        published="exact match .289 and .000",
        task="copy",
        labels=("alibi", "rope"),
        check=ahead("exact past"),
    ),
    Claim(
        text="On counting copy, sinusoidal positions fail past the trained length",
        source=KAZEMNEJAD,
        published="exact match .000",
        task="copy",
        labels=("sinusoidal",),
        check=within("exact past", most=0.05),
    ),
    Claim(
        text="On counting copy, T5's bias is ahead of ALiBi",
        source=KAZEMNEJAD,
        published="exact match .771 and .289",
        task="copy",
        labels=("t5", "alibi"),
        check=ahead("exact past"),
    ),
    Claim(
        text="On replacing one token by another, no positions are far ahead of ALiBi",
        source=KAZEMNEJAD,
        published="exact match .967 and .170",
        task="replace",
        labels=("none", "alibi"),
        check=ahead("exact past", by=0.2),
    ),
    Claim(
        text="On replacing one token by another, ALiBi is ahead of RoPE",
        source=KAZEMNEJAD,
        published="exact match .170 and .016",
        task="replace",
        labels=("alibi", "rope"),
        check=ahead("exact past"),
    ),
    Claim(
        text="On copying random tokens, ALiBi is ahead of RoPE",
        source=KAZEMNEJAD,
        published="exact match .331 and .011",
        task="random_copy",
        labels=("alibi", "rope"),
        check=ahead("exact past"),
    ),
    Claim(
        text="On copying random tokens, ALiBi is ahead of no positions",
        source=KAZEMNEJAD,
        published="exact match .331 and .305",
        task="random_copy",
        labels=("alibi", "none"),
        check=ahead("exact past"),
    ),
    Claim(
        text="On copying random tokens, sinusoidal positions fail past the trained length",
        source=KAZEMNEJAD,
        published="exact match .028",
        task="random_copy",
        labels=("sinusoidal",),
        check=within("exact past", most=0.05),
    ),
    Claim(
        text="Forgetting gates carry further than RoPE past the trained length (here: copying "
        "random tokens)",
        source="Lin et al. 2025, arXiv 2503.02130",
        published="better than RoPE at length extrapolation (their abstract); no figures for this "
        "task",
        task="random_copy",
        labels=("fox", "rope"),
        check=ahead("exact past"),
    ),
    Claim(
        text="Models without positions train more slowly (here: counting copy)",
        source="Haviv et al. 2022, arXiv 2203.16634 (higher loss after as much training)",
        published="perplexity 20.97 and 20.16 for sinusoidal",
        task="copy",
        labels=("none", "rope"),
        check=slower,
    ),
    Claim(
        text="No positions are behind positions inside the training length, in language modelling",
        source="Haviv et al. 2022, arXiv 2203.16634",
        published="perplexity 20.97, sinusoidal 20.16",
        task="text",
        labels=("sinusoidal", "none"),
        check=ahead("loss@1x", low=True),
    ),
    Claim(
        text="Sinusoidal positions break past the training length",
        source=PRESS,
        published="perplexity 20.05 at 512, 43.54 at 1012, 132 at 2512",
        task="text",
        labels=("sinusoidal",),
        check=change("loss@1x", "loss@4x", least=0.3),
    ),
    Claim(
        text="RoPE breaks past the training length",
        source=PRESS,
        published="perplexity 20.07 at 512, 31.58 at 2512, 79.25 at 15512",
        task="text",
        labels=("rope",),
        check=change("loss@1x", "loss@4x", least=0.2),
    ),
    Claim(
        text="ALiBi's loss does not rise past the training length",
        source=PRESS,
        published="perplexity 19.73 at 512, 18.41 at 2512, 18.31 at 15512",
        task="text",
        labels=("alibi",),
        check=change("loss@1x", "loss@8x", most=0.05),
    ),
    Claim(
        text="ALiBi's flat curve is not use of far context: on the same last tokens, eight times "
        "the context gains next to nothing",
        source=f"{PRESS}, appendix B",
        published="flat with a sliding window",
        task="text",
        labels=("alibi",),
        check=change("last@1x", "last@8x", least=-0.03, most=0.05),
    ),
    Claim(
        text="T5's bias carries further than RoPE",
        source=PRESS,
        published="perplexity at 2512: T5 20.41, RoPE 31.58",
        task="text",
        labels=("t5", "rope"),
        check=ahead("loss@4x", low=True),
    ),
    Claim(
        text="RoPE in a sliding window stays flat past the training length",
        source="Puvvada et al. 2025, arXiv 2504.08719",
        published="layers of windowed RoPE between layers without positions hold far past the "
        "training length (their abstract); here the windowed layers alone",
        task="text",
        labels=("control: window",),
        check=change("loss@1x", "loss@8x", most=0.1),
    ),
    Claim(
        text="Without further training, NTK-aware scaling is better than position interpolation "
        "at twice the length",
        source="Ding et al. 2024, arXiv 2402.13753",
        published="perplexity of LLaMA2-7B at 8192: dynamic NTK 10.21, interpolation 10.65",
        task="text",
        labels=("NTK 2x", "PI 2x"),
        check=ahead("loss@2x", low=True),
    ),
    Claim(
        text="Without further training, NTK-aware scaling is better than no scaling at twice the "
        "length",
        source="Su 2023, the ReRoPE repository",
        published="loss of LLaMA2-13B at 8192: 1.54, without scaling 8.86",
        task="text",
        labels=("NTK 2x", "rope"),
        check=ahead("loss@2x", low=True),
    ),
    Claim(
        text="Without further training, YaRN is better than NTK-aware scaling at four times the "
        "length",
        source="Peng et al. 2023, arXiv 2309.00071",
        published="perplexity at 8192 after training: 3.35 and 3.59; without training Ding et al. "
        "2024, arXiv 2402.13753, find the reverse at 16384: 87.9 and 23.3",
        task="text",
        labels=("YaRN 4x", "NTK 4x"),
        check=ahead("loss@4x", low=True),
    ),
    Claim(
        text="Without further training, position interpolation is better than no scaling at four "
        "times the length",
        source="Chen et al. 2023, arXiv 2306.15595",
        published="perplexity at 8192: 16.10, and above 1000 without",
        task="text",
        labels=("PI 4x", "rope"),
        check=ahead("loss@4x", low=True),
    ),
    Claim(
        text="A forgetting gate lets attention drop what was overwritten: it holds one bit at four "
        "times the trained length",
        source="Lin et al. 2025, arXiv 2503.02130",
        published="the mechanism; no figures for this task",
        task="flip_flop",
        labels=("fox",),
        check=within("token@4x", least=0.98),
    ),
    Claim(
        text="Stick-breaking attention, which takes the most recent match, holds one bit at four "
        "times the trained length",
        source="Tan et al. 2024, arXiv 2410.17980",
        published="trained on 2048, perplexity falls up to 16384; no figures for this task",
        task="flip_flop",
        labels=("stick_breaking",),
        check=within("token@4x", least=0.98),
    ),
    Claim(
        text="RoPE glitches on flip-flop past the trained length",
        source=LIU,
        published="sporadic errors on sequences unlike those of training",
        task="flip_flop",
        labels=("rope",),
        check=within("token@4x", most=0.95),
    ),
)


def check_claims(run: GridRun) -> list[tuple[Claim, Finding]]:
    """Every claim with what this grid says of it."""
    return [(claim, check_claim(claim, run)) for claim in CLAIMS]
