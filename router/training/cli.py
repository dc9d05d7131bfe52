"""`octet router train` and `octet router eval`."""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from octet.text_io import file_words
from router.classify.artefact import ClassifierRefused, read_classifier
from router.classify.default import DATA, DEFAULT_FILE
from router.classify.linear import LinearClassifier

CORPUS = DATA / "corpus"
HELD_OUT = DATA / "heldout.jsonl"
WRONG = 2
_EXIT_STATUS = "Exit status: 0 when all went well, 2 when something must be put right first (the message says what)."


def add_training_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "train the classifier on labelled prompts"
    train = commands.add_parser("train", help=about, description=f"{about.capitalize()}.", epilog=_EXIT_STATUS)
    _add_data(train, "the corpus that comes with Octet")
    train.add_argument(
        "--out", type=Path, default=Path("classifier.safetensors"), metavar="FILE", help="default: %(default)s"
    )
    train.add_argument("--json", action="store_true", help="what was written, and the figures, as JSON")
    train.set_defaults(run=_guarded(_train))
    about = "measure a classifier on labelled prompts"
    evaluate = commands.add_parser("eval", help=about, description=f"{about.capitalize()}.", epilog=_EXIT_STATUS)
    evaluate.add_argument(
        "--classifier", type=Path, default=DEFAULT_FILE, metavar="FILE", help="default: the one that comes with Octet"
    )
    _add_data(evaluate, "the held-out sources that come with Octet")
    evaluate.add_argument("--json", action="store_true", help="the figures as JSON")
    evaluate.set_defaults(run=_guarded(_evaluate))


def _add_data(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        metavar="FILE",
        help=f'JSON lines, each with "text", "label" and "source"; without it: {default}',
    )


def _guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Bad data, a bad file and a missing package are said in one line."""

    def guarded(arguments: argparse.Namespace) -> int:
        from router.training.fit import TrainingUnavailable

        try:
            return run(arguments)
        except BrokenPipeError:
            raise
        except OSError as error:
            print(f"octet router: {file_words(error)}", file=sys.stderr)
            return WRONG
        except (ValueError, ClassifierRefused, TrainingUnavailable) as error:
            print(f"octet router: {error}", file=sys.stderr)
            return WRONG

    return guarded


def _train(arguments: argparse.Namespace) -> int:
    from router.training.records import read_records
    from router.training.train import train

    trained = train(read_records(arguments.data or corpus_files()))
    arguments.out.write_bytes(trained.data)
    digest = hashlib.sha256(trained.data).hexdigest()
    if arguments.json:
        figures = {"left_out_top1": trained.left_out_top1, "temperature": trained.temperature}
        print(json.dumps({"file": str(arguments.out), "bytes": len(trained.data), "sha256": digest, **figures}))
        return 0
    print(f"{arguments.out}: {len(trained.data)} bytes, sha256 {digest}")
    print(f"{trained.left_out_top1:.1%} top-1 on training sources left out, temperature {trained.temperature:.3f}")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from router.training.measure import evaluate
    from router.training.records import read_records
    from router.training.report import as_text

    evaluation = evaluate(_classifier(arguments.classifier), read_records(arguments.data or [HELD_OUT]))
    print(json.dumps(evaluation.as_json(), indent=2) if arguments.json else as_text(evaluation))
    return 0


def _classifier(path: Path) -> LinearClassifier:
    try:
        return read_classifier(path)
    except ClassifierRefused as error:
        raise ClassifierRefused(f"{path}: {error}") from error


def corpus_files() -> list[Path]:
    return sorted(CORPUS.glob("*.jsonl"))
