"""The ablation lab: trains one small model per position scheme and says how they compare."""
