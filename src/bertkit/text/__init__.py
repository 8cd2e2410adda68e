"""Text to ids and back: vocabularies and tokenizers. Imports no torch."""
