"""Fine-tune a classifier, compress it, publish its folder, and load it in another process: needs transformers.

python examples/publish.py [FOLDER], where the packed model goes; without one it is deleted at the end
"""

import random
import subprocess
import sys
import tempfile

import octavo
import tokenizers
import transformers

RECIPE = "int4:g32; type:Embedding int8:channel; classifier keep"
WORDS = ["[PAD]", "the", "film", "book", "was", "and", "good", "great", "fine", "bad", "poor", "dull"]
ELSEWHERE = """
import sys, octavo.transformers, transformers
classify = transformers.pipeline("text-classification", model=sys.argv[1])
print(*(answer["label"] for answer in classify(sys.stdin.read().splitlines())))
"""


def reviews(count: int, seed: int) -> list[tuple[str, str]]:
    """Return texts, each with the label that most of its three judgements have."""
    draw = random.Random(seed)
    judged = [draw.choices(WORDS[6:], k=3) for _ in range(count)]
    labels = ["good" if sum(word in WORDS[6:9] for word in words) > 1 else "bad" for words in judged]
    texts = [f"the {draw.choice(WORDS[2:4])} was {' and '.join(words)}" for words in judged]
    return list(zip(texts, labels, strict=True))


def main() -> None:
    """Print the accuracy of the packed model, and the share of answers that another process gives, too."""
    transformers.set_seed(0)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, "[PAD]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.BertConfig(vocab_size=len(WORDS), id2label={0: "bad", 1: "good"}, **sizes)
    model = transformers.BertForSequenceClassification(config)
    rows = [{**tokenizer(text), "labels": int(label == "good")} for text, label in reviews(2000, seed=0)]
    with tempfile.TemporaryDirectory() as scratch:
        options = {"max_steps": 60, "learning_rate": 3e-3, "per_device_train_batch_size": 32, "use_cpu": True}
        arguments = transformers.TrainingArguments(scratch, report_to=[], save_strategy="no", **options)
        transformers.Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer).train()
        packed = octavo.pack_model(octavo.quantize_model(model.eval(), RECIPE))
        folder = sys.argv[1] if len(sys.argv) > 1 else scratch
        packed.save_pretrained(folder)  # push_to_hub(name) uploads the same files
        tokenizer.save_pretrained(folder)
        texts, labels = zip(*reviews(300, seed=1), strict=True)
        there = subprocess.check_output([sys.executable, "-c", ELSEWHERE, folder], input="\n".join(texts), text=True)
    classify = transformers.pipeline("text-classification", model=packed, tokenizer=tokenizer)
    here = [answer["label"] for answer in classify(list(texts))]
    print(f"right answers: {sum(map(str.__eq__, here, labels)) / len(here):.1%}")
    print(f"the same answers in another process: {sum(map(str.__eq__, here, there.split())) / len(here):.1%}")


if __name__ == "__main__":
    main()
