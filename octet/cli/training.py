"""`octet router train`, `octet router eval` and `octet router tune`."""

import argparse
import hashlib
import json
from pathlib import Path
from typing import get_args

from octet.cli import router_client as cli
from octet.cli.arguments import Commands, add_parser, number_type, parse_duration, report_errors
from router.routing.classifier.linear import DATA, DEFAULT_FILE, ClassifierInvalid, read_classifier
from router.routing.training import shadow_thresholds as thresholds

CORPUS_FOLDER = DATA / "corpus"
HELD_OUT_FILE = DATA / "heldout.jsonl"
_EXIT_STATUS = "Exit status: 0 on success, 2 when an option, a file or the data is invalid."
_TUNE_HELP = """
One threshold for every intent, from the comparisons that the router stores or
from a file, with its cost and its benefit. Nothing is changed: the last lines
print the commands that do."""
_THRESHOLD = ".shadow_threshold"
parse_share = number_type(lambda share: 0.01 <= share <= 0.99, "a share is a number in [0.01, 0.99]")


def add_training_commands(commands: Commands) -> None:
    train = add_parser(commands, "train", "train the classifier on labelled prompts", epilog=_EXIT_STATUS)
    _add_data(train, "the corpus that comes with Octet")
    out = Path("classifier.safetensors")
    train.add_argument("--out", type=Path, default=out, metavar="FILE", help="default: %(default)s")
    train.add_argument("--json", action="store_true", help="print file, digest and figures as JSON")
    train.set_defaults(run=lambda arguments: report_errors("router", lambda: _train(arguments)))
    evaluate = add_parser(commands, "eval", "measure a classifier on labelled prompts", epilog=_EXIT_STATUS)
    about = "default: the one that comes with Octet"
    evaluate.add_argument("--classifier", type=Path, default=DEFAULT_FILE, metavar="FILE", help=about)
    _add_data(evaluate, "the held-out sources that come with Octet")
    evaluate.add_argument("--json", action="store_true", help="print the figures as JSON")
    evaluate.set_defaults(run=lambda arguments: report_errors("router", lambda: _evaluate(arguments)))


def _add_data(parser: argparse.ArgumentParser, default: str) -> None:
    about = f'JSON lines, each with "text", "label" and "source"; default: {default}'
    parser.add_argument("--data", type=Path, nargs="+", metavar="FILE", help=about)


def add_tune_command(commands: Commands) -> None:
    about = "propose shadow thresholds from shadow comparisons"
    parser = cli.add_operator_command(commands, "tune", about, more=_TUNE_HELP)
    source = parser.add_argument_group("comparisons")
    source.add_argument("--last", type=parse_duration, metavar="TIME", help="such as 24h; default: all")
    about = "read a file written by --export instead"
    source.add_argument("--from", dest="file", type=Path, metavar="FILE", help=about)
    source.add_argument("--export", type=Path, metavar="FILE", help="write the comparisons as JSON lines")
    goal = parser.add_argument_group("goal").add_mutually_exclusive_group()
    about = "smallest share of saves to catch (default: %(default)s)"
    goal.add_argument("--catch", type=parse_share, default=0.9, metavar="SHARE", help=about)
    goal.add_argument("--budget", type=parse_share, metavar="SHARE", help="largest share of today's shadows to keep")
    about = "what to catch; a save is a request that only the shadow answered correctly (default: %(default)s)"
    parser.add_argument("--by", choices=get_args(thresholds.GoalAim), default="saves", help=about)
    parser.set_defaults(run=lambda arguments: cli.run_command("router tune", lambda: _tune(parser, arguments)))


def _train(arguments: argparse.Namespace) -> int:
    from router.routing.training.records import read_records
    from router.routing.training.train import train

    trained = train(read_records(arguments.data or corpus_files()))
    arguments.out.write_bytes(trained.data)
    digest = hashlib.sha256(trained.data).hexdigest()
    if arguments.json:
        figures = {"left_out_top1": trained.left_out_top1, "temperature": trained.temperature}
        print(json.dumps({"file": str(arguments.out), "bytes": len(trained.data), "sha256": digest, **figures}))
        return 0
    print(f"{arguments.out}: {len(trained.data)} bytes, sha256 {digest}")
    print(f"{trained.left_out_top1:.1%} top-1 on left-out training sources, temperature {trained.temperature:.3f}")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from router.routing.training.evaluation import evaluate, format_evaluation
    from router.routing.training.records import read_records

    try:
        classifier = read_classifier(arguments.classifier)
    except ClassifierInvalid as error:
        raise ClassifierInvalid(f"{arguments.classifier}: {error}") from error
    evaluation = evaluate(classifier, read_records(arguments.data or [HELD_OUT_FILE]))
    print(json.dumps(evaluation.as_json(), indent=2) if arguments.json else format_evaluation(evaluation))
    return 0


def corpus_files() -> list[Path]:
    return sorted(CORPUS_FOLDER.glob("*.jsonl"))


def _tune(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.file is not None and (arguments.last is not None or arguments.export is not None):
        parser.error("--from cannot be combined with --last or --export: the comparisons come from the file")
    goal: thresholds.ThresholdGoal = thresholds.CatchGoal(arguments.catch, arguments.by)
    if arguments.budget is not None:
        goal = thresholds.BudgetGoal(arguments.budget)
    if arguments.file is not None:
        tuning = thresholds.tune_thresholds(thresholds.read_comparisons(arguments.file), goal, {})
    else:
        tuning = _tune_from_router(arguments, goal)
    return cli.print_result(arguments, tuning.to_json(), "\n".join(thresholds.format_tuning(tuning)))


def _tune_from_router(arguments: argparse.Namespace, goal: thresholds.ThresholdGoal) -> thresholds.ThresholdTuning:
    with cli.open_operator(arguments) as operator:
        current = {each.name.removesuffix(_THRESHOLD): each.value for each in operator.knobs()}
        comparisons = operator.comparisons(arguments.last or 0.0)
        if arguments.export is None:
            return thresholds.tune_thresholds(comparisons, goal, current)
        with arguments.export.open("w", encoding="utf-8") as file:
            return thresholds.tune_thresholds(thresholds.write_comparisons(comparisons, file), goal, current)
