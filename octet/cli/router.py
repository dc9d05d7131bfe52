"""`octet router`: a router for replicas that run elsewhere; and commands to train, measure and tune its routing."""

import argparse
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import get_args

from octet.cli import arguments as cli
from octet.cli import router_client
from octet.cli.arguments import Commands, add_flag, add_option, add_parser, parse_port, report_errors
from octet.cli.check import load_ensemble
from octet.config.ensemble import DEFAULT_HTTP_PORT, Ensemble, HttpConfig, RouterConfig
from octet.rpc.certificates import Tls, add_tls_options
from octet.rpc.listener import check_address_free, check_keys_configured, check_tls_configured
from octet.supervisor.process import LISTENER_FD_VARIABLE, take_inherited_descriptor
from octet.telemetry.logs import add_log_options, log_settings, set_up_logging
from octet.telemetry.trace_export import add_trace_option, resolve_otlp_endpoint
from router.api.keys.key_file import open_keys
from router.dispatch.transport import ReplicaTls
from router.routing.classifier.linear import DATA, DEFAULT_FILE, ClassifierInvalid, LinearClassifier, read_classifier
from router.routing.training import shadow_thresholds as thresholds
from router.settings import HttpSettings, RouterSettings, replica_addresses

CORPUS_FOLDER = DATA / "corpus"
HELD_OUT_FILE = DATA / "heldout.jsonl"
_DESCRIPTION = """\
Serve octet.v1.Inference and octet.v1.Operator over replicas that run elsewhere,
with health and reflection; and the HTTP APIs, unless the configuration or --no-http
disables them, or other machines can reach --host and the configuration does not
enable them. Prints one line when every specialist has a ready replica. The
configuration file is watched for changes; SIGHUP reloads it at once. SIGTERM and
Ctrl-C finish running requests first; a second Ctrl-C stops at once.

Exit status: 0 after a clean shutdown, 2 when the configuration or an option is
invalid, 130 after a second Ctrl-C.
"""
_EXIT_STATUS = "Exit status: 0 on success, 2 when an option, a file or the data is invalid."
_TRAIN_EXIT_STATUS = (
    "Exit status: 0 on success, 1 when the gate refuses, 2 when an option, a file or the data is invalid."
)
_TUNE_HELP = """
Proposes a threshold for each intent, with its cost and benefit, from comparisons
that the router stored or that are in a file. Nothing is changed: the last lines
are the commands that would set the thresholds."""
_THRESHOLD = ".shadow_threshold"
_parse_share = cli.number_type(lambda share: 0.01 <= share <= 0.99, "a share must be a number in [0.01, 0.99]")


def add_router_command(commands: Commands) -> None:
    about = "serve one endpoint in front of replicas that run elsewhere"
    parser = add_parser(commands, "router", about, description=_DESCRIPTION)
    option = partial(add_option, parser)
    option("--config", "FILE", "configuration (default: eight C++ specialists)", Path)
    about = "save the last valid configuration here, and start from it if --config has become invalid"
    option("--accepted", "FILE", about, Path)
    _add_listener_options(parser.add_argument_group("listening"))
    _add_replica_options(parser.add_argument_group("replicas"))
    telemetry = parser.add_argument_group("telemetry")
    add_trace_option(telemetry, "telemetry.otlp in the configuration")
    add_log_options(telemetry)
    parser.set_defaults(run=_run)
    subcommands = parser.add_subparsers(metavar="COMMAND")
    _add_training_commands(subcommands)
    _add_tune_command(subcommands)


def _add_listener_options(group: "argparse._ArgumentGroup") -> None:
    defaults, option = RouterConfig(), partial(add_option, group)
    option("--host", "HOST", f"default: the configuration's, or {defaults.host}")
    about = f"0 for any free port (default: the configuration's, or {defaults.port})"
    option("--port", "PORT", about, parse_port)
    option("--socket", "PATH", "a Unix socket instead of host and port", Path)
    option("--http-host", "HOST", f"default: the configuration's, or {HttpConfig().host}")
    about = f"enable HTTP on this port, 0 for any free port (default: the configuration's, or {DEFAULT_HTTP_PORT})"
    cli.add_http_options(group, about)
    add_tls_options(group, "require client certificates signed by this CA")
    cli.add_access_options(group)


def _add_replica_options(group: "argparse._ArgumentGroup") -> None:
    option = partial(add_option, group)
    parse_replica = partial(cli.parse_pair, expected="a replica must be given as SPECIALIST=ADDRESS")
    about = "host:port, unix:PATH, or dns:///name:port for every address of the name; repeatable"
    option("--replica", "SPECIALIST=ADDRESS", about, parse_replica, action="append", default=[])
    about = "the folder in which the supervisor that runs the replicas takes orders for weights; set by octet serve"
    option("--weights", "DIR", about, Path)
    option("--replica-ca", "FILE", "CA that must have signed replica certificates", Path)
    option("--replica-certificate", "FILE", "client certificate for replicas", Path)
    option("--replica-key", "FILE", "key of the client certificate", Path)


def _run(arguments: argparse.Namespace) -> int:
    set_up_logging(log_settings(arguments), "%(asctime)s %(levelname)s octet router %(name)s: %(message)s")
    return report_errors("router", lambda: _serve(arguments))


def _serve(arguments: argparse.Namespace) -> int:
    from octet.config.reload import load_accepted_config

    config, accepted = arguments.config, arguments.accepted
    is_kept = config is not None and accepted is not None
    ensemble = load_accepted_config(config, accepted) if is_kept else load_ensemble(config, files=False)
    settings = _settings(arguments, ensemble)
    replica_addresses(ensemble, settings)
    for listener, option in ((settings, cli.PORT_SETTING), (settings.http, cli.HTTP_PORT_SETTING)):
        if listener is not None:
            check_tls_configured(listener)
            check_keys_configured(listener, has_keys=settings.keys is not None)
            if not isinstance(listener, HttpSettings) or listener.descriptor is None:
                check_address_free(listener, option)
    if settings.keys is not None:
        settings.keys.load()
    from router.server import serve  # imported only once the options are valid, because it loads a classifier

    return serve(ensemble, settings, accepted)


def _settings(arguments: argparse.Namespace, ensemble: Ensemble) -> RouterSettings:
    router = ensemble.router if arguments.host is None else replace(ensemble.router, host=arguments.host)
    tls = Tls.from_options(arguments) or Tls.from_config(router.tls)
    return RouterSettings(
        host=router.host,
        port=router.port if arguments.port is None else arguments.port,
        socket=arguments.socket,
        tls=tls,
        insecure=arguments.insecure,
        http=_http_listener(arguments, router, tls),
        keys=open_keys(arguments.keys, os.environ, router.keys),
        replicas=_group_by_specialist(arguments.replica),
        replica_tls=_replica_tls(arguments),
        weights=arguments.weights,
        otlp=resolve_otlp_endpoint(arguments.otlp, ensemble.telemetry.otlp, os.environ),
    )


def _http_listener(arguments: argparse.Namespace, router: RouterConfig, tls: Tls | None) -> HttpSettings | None:
    http = router.override_http(arguments.http_port, disabled=arguments.no_http).http_listener
    if http is None:
        if arguments.http_host is not None:
            raise ValueError("--http-host has no effect while HTTP is disabled: add --http-port")
        return None
    host, port = arguments.http_host or http.host, http.port
    origins, bound = http.allow_origins, take_inherited_descriptor(LISTENER_FD_VARIABLE)
    return HttpSettings(host, port, allow_origins=origins, tls=tls, insecure=arguments.insecure, descriptor=bound)


def _group_by_specialist(given: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for specialist, address in given:
        if address in found.get(specialist, ()):
            raise ValueError(f"--replica: {specialist}={address} is given more than once")
        found[specialist] = (*found.get(specialist, ()), address)
    return found


def _replica_tls(arguments: argparse.Namespace) -> ReplicaTls | None:
    certificate = (arguments.replica_certificate, arguments.replica_key)
    if arguments.replica_ca is None:
        if certificate != (None, None):
            raise ValueError("--replica-certificate needs --replica-ca: the certificate goes only to verified replicas")
        return None
    return ReplicaTls(arguments.replica_ca, *certificate)


def _add_training_commands(commands: Commands) -> None:
    train = add_parser(commands, "train", "train the classifier on labelled prompts", epilog=_TRAIN_EXIT_STATUS)
    evaluate = add_parser(commands, "eval", "measure a classifier on labelled prompts", epilog=_EXIT_STATUS)
    lines = 'JSON lines, each with "text", "label" and "source"; default:'
    add_option(train, "--data", "FILE", f"{lines} the corpus that comes with Octet", Path, nargs="+")
    add_option(train, "--out", "FILE", "default: %(default)s", Path, default=Path("classifier.safetensors"))
    about = "also train on verdicts in this file of shadow comparisons (octet router tune --export), behind a gate"
    add_option(train, "--from-shadow", "FILE", about, Path)
    about = "with --from-shadow: the classifier to improve, trained on --data; default: the one that comes with Octet"
    add_option(train, "--classifier", "FILE", about, Path, default=DEFAULT_FILE)
    about = f"with --from-shadow: {lines} the held-out sources that come with Octet"
    add_option(train, "--reference", "FILE", about, Path, nargs="+")
    about = "with --from-shadow: largest loss of accuracy and calibration on the reference (default: %(default)s)"
    add_option(train, "--margin", "SHARE", about, _parse_margin, default=0.01)
    add_flag(train, "--json", "print file, digest and figures as JSON")
    train.set_defaults(run=lambda arguments: report_errors("router", lambda: _train(arguments)))
    about = "default: with --data, train on the data, each source left out in turn; else the one that comes with Octet"
    add_option(evaluate, "--classifier", "FILE", about, Path)
    add_option(evaluate, "--data", "FILE", f"{lines} the held-out sources that come with Octet", Path, nargs="+")
    about = "configuration whose rules are measured (default: eight C++ specialists)"
    add_option(evaluate, "--config", "FILE", about, Path)
    add_flag(evaluate, "--json", "print the figures as JSON")
    evaluate.set_defaults(run=lambda arguments: report_errors("router", lambda: _evaluate(arguments)))


_parse_margin = cli.number_type(lambda share: 0 <= share <= 0.2, "a margin must be a number in [0, 0.2]")


def _add_tune_command(commands: Commands) -> None:
    about = "propose shadow thresholds from shadow comparisons"
    parser = router_client.add_operator_command(commands, "tune", about, _tune, _TUNE_HELP)
    source = partial(add_option, parser.add_argument_group("comparisons"))
    source("--last", "TIME", "such as 24h; default: all", cli.parse_duration)
    source("--from", "FILE", "read a file written by --export instead", Path, dest="file")
    source("--export", "FILE", "write the comparisons as JSON lines", Path)
    goal = partial(add_option, parser.add_argument_group("goal").add_mutually_exclusive_group())
    goal("--catch", "SHARE", "smallest share of saves to catch (default: %(default)s)", _parse_share, default=0.9)
    goal("--budget", "SHARE", "largest share of the current shadows to keep", _parse_share)
    about = "what to catch; a save is a request that only the shadow answered correctly (default: %(default)s)"
    parser.add_argument("--by", choices=get_args(thresholds.GoalAim), default="saves", help=about)


def _train(arguments: argparse.Namespace) -> int:
    from router.routing.training.records import read_records
    from router.routing.training.train import train

    if arguments.from_shadow is not None:
        return _train_from_shadow(arguments)
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


def _train_from_shadow(arguments: argparse.Namespace) -> int:
    """Write the classifier only if the gate lets it replace the base. Write the report in either case."""
    from router.routing.training import retrain
    from router.routing.training.records import read_records
    from router.routing.training.train import collect_labels

    base, corpus = _read_classifier(arguments.classifier), read_records(arguments.data or corpus_files())
    if set(base.labels) != set(collect_labels(corpus)):
        needed, found = ", ".join(base.labels), ", ".join(collect_labels(corpus))
        raise ValueError(f"--data must be what --classifier was trained on, with the labels {needed}; it has {found}")
    reference = retrain.split_reference(read_records(arguments.reference or [HELD_OUT_FILE]))
    examples = retrain.collect_examples(thresholds.read_comparisons(arguments.from_shadow), base.labels)
    if not (examples.trained or examples.held_back):
        why = ", ".join(f"{number} ({reason})" for reason, number in examples.left_out) or "the file has none"
        raise ValueError(f"--from-shadow: no comparison shows which specialist was right; left out: {why}")
    data = retrain.retrain(corpus, examples, reference.calibrating)
    report = retrain.judge_retrained(base, data, examples, reference.judging, arguments.margin)
    report_file = arguments.out.with_suffix(".report.json")
    report_file.write_text(report.to_json() + "\n", encoding="utf-8")
    if not report.refusals:
        arguments.out.write_bytes(data)
    if arguments.json:
        print(report.to_json())
    else:
        print(retrain.format_gate(report))
        written = "" if report.refusals else f"{arguments.out}: sha256 {report.retrained}\n"
        print(f"{written}report: {report_file}")
    return 1 if report.refusals else 0


def _read_classifier(path: Path) -> LinearClassifier:
    try:
        return read_classifier(path)
    except ClassifierInvalid as error:
        raise ClassifierInvalid(f"{path}: {error}") from error


def _evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate the named classifier; with only data, training on that data, each source left out; else the default."""
    from router.routing.training.evaluation import evaluate, evaluate_left_out, format_evaluation
    from router.routing.training.records import read_records
    from router.routing.training.rule_precision import format_rules, measure_rules

    records = read_records(arguments.data or [HELD_OUT_FILE])
    if arguments.classifier is None and arguments.data:
        evaluation = evaluate_left_out(records)
    else:
        evaluation = evaluate(_read_classifier(arguments.classifier or DEFAULT_FILE), records)
    rules = measure_rules(load_ensemble(arguments.config, files=False).rules, records)
    if arguments.config is None and set(evaluation.labels).isdisjoint(each.specialist for each in rules):
        rules = ()  # the default configuration is about other specialists
    if arguments.json:
        figures = [{**asdict(each), "precision": each.precision} for each in rules]
        print(json.dumps({**evaluation.as_json(), "rules": figures}, indent=2))
    else:
        print(format_evaluation(evaluation) + (f"\n\nrules\n\n{format_rules(rules)}" if rules else ""))
    return 0


def corpus_files() -> list[Path]:
    return sorted(CORPUS_FOLDER.glob("*.jsonl"))


def _tune(arguments: argparse.Namespace) -> int:
    if arguments.file is not None and (arguments.last is not None or arguments.export is not None):
        raise ValueError("--from cannot be combined with --last or --export: the comparisons come from the file")
    goal: thresholds.ThresholdGoal = thresholds.CatchGoal(arguments.catch, arguments.by)
    if arguments.budget is not None:
        goal = thresholds.BudgetGoal(arguments.budget)
    if arguments.file is not None:
        tuning = thresholds.tune_thresholds(thresholds.read_comparisons(arguments.file), goal, {})
    else:
        tuning = _tune_from_router(arguments, goal)
    return router_client.print_result(arguments, tuning.to_json(), "\n".join(thresholds.format_tuning(tuning)))


def _tune_from_router(arguments: argparse.Namespace, goal: thresholds.ThresholdGoal) -> thresholds.ThresholdTuning:
    with router_client.open_operator(arguments) as operator:
        current = {each.name.removesuffix(_THRESHOLD): each.value for each in operator.knobs()}
        comparisons = operator.comparisons(arguments.last or 0.0)
        if arguments.export is None:
            return thresholds.tune_thresholds(comparisons, goal, current)
        with arguments.export.open("w", encoding="utf-8") as file:
            return thresholds.tune_thresholds(thresholds.write_comparisons(comparisons, file), goal, current)
