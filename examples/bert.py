"""A sequence classifier of Hugging Face as a model: pip install '.[huggingface,text]'."""

from transformers import BertConfig, BertForSequenceClassification


def model(num_classes):
    """Random weights; from_pretrained("your/folder", num_labels=num_classes) takes others."""
    config = BertConfig(
        vocab_size=2000,  # of the tokenizer
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=128,  # max_length, and more
        num_labels=num_classes,
    )
    return BertForSequenceClassification(config)
