"""The contrasting prompts that the demo fits its control vector from: four questions, each answered in two moods."""

from __future__ import annotations

QUESTIONS = (
    "How are you today?",
    "What do you think about your life?",
    "Describe this morning.",
    "What is it like to be you?",
)
JOYFUL = (
    "I feel wonderful! Everything is bright and full of joy, and",
    "What a beautiful, happy day! I am so delighted that",
    "I am overjoyed and so grateful, because life is amazing and",
    "Fantastic! I am smiling and laughing with happiness, and",
)
DESPAIRING = (
    "I feel terrible. Everything is dark and hopeless, and",
    "What an awful, miserable day. I am in despair that",
    "I am heartbroken and so lonely, because life is pain and",
    "Horrible. I am crying and suffering with grief, and",
)
