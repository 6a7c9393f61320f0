"""All files of a run explained together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scaling.explain.accelerate import accelerate_run, explain_accelerate, plugin_config, processes_of
from scaling.explain.accelerate_rules import AccelerateRun
from scaling.explain.agreement import disagreements, flat_disagreements, precision_of
from scaling.explain.auto_values import Surroundings, wants_filling
from scaling.explain.deepspeed import Explained, explain_deepspeed
from scaling.explain.findings import Action, Finding, Repair, Severity, Topic, ordered, verdict
from scaling.explain.key_table import KeyTable, shipped_table
from scaling.explain.sources import PACKAGES, FileKind, Launcher, Source, Sources
from scaling.explain.trainer import explain_arguments, with_defaults
from scaling.explain.tree import Tree, leaves
from scaling.explain.values import Origin, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is known beside the files."""

    world_size: int | None = None
    launcher: Launcher | None = None
    """None: the one that the files tell."""
    hidden_size: int | None = None
    largest_parameter: int | None = None
    tables: Mapping[str, KeyTable] | None = None
    """By package; None: those that come with this program."""

    def table(self, kind: FileKind) -> KeyTable:
        package = PACKAGES[kind]
        return (self.tables or {}).get(package) or shipped_table(package)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the files of a run mean."""

    sources: Sources
    launcher: Launcher
    world_size: int | None
    findings: tuple[Finding, ...]
    """The gravest first."""
    explained: Mapping[str, Explained]
    """By file name."""
    deepspeed: Tree | None
    """The DeepSpeed configuration of the run, resolved; None where DeepSpeed is not used."""
    values: tuple[Value, ...]
    """Of all files, and of the DeepSpeed configuration that accelerate makes."""

    def verdict_on(self, name: str) -> str:
        """Return the verdict on one file."""
        return verdict(finding for finding in self.findings if finding.file == name)


def explain(sources: Sources, asked: Asked) -> Explanation:
    """Return what the files of one run mean together."""
    return _Together(sources, asked).explanation()


class _Together:
    """The parts of an explanation while they are found."""

    def __init__(self, sources: Sources, asked: Asked) -> None:
        self.sources, self.asked = sources, asked
        self.yaml, self.arguments = sources.of(FileKind.ACCELERATE), sources.of(FileKind.TRAINING_ARGS)
        self.json = sources.of(FileKind.DEEPSPEED)
        self.launcher = asked.launcher or _told_launcher(sources)
        self.world_size = asked.world_size or (processes_of(self.yaml.tree) if self.yaml else None)
        self.findings: list[Finding] = [finding for each in sources.all for finding in each.file.findings]
        self.explained: dict[str, Explained] = {}
        self.run: AccelerateRun | None = None
        self.made: tuple[Value, ...] = ()
        self.deepspeed: Tree | None = None

    def explanation(self) -> Explanation:
        self.findings += [_unknown_kind(each) for each in self.sources.all if each.kind is None and each.file.tree]
        if self.arguments and self.arguments.tree:
            self._explain_arguments(self.arguments)
        if self.yaml and self.yaml.tree:
            self._explain_yaml(self.yaml)
        if self.json and self.json.tree:
            self._explain_json(self.json.tree, self.json.name)
        elif self.arguments and isinstance(self.arguments.tree.get("deepspeed"), dict):
            self._explain_json(self.arguments.tree["deepspeed"], self.arguments.name, inside="deepspeed.")
        self._missing()
        values = tuple(value for each in self.explained.values() for value in each.values)
        return Explanation(
            sources=self.sources,
            launcher=self.launcher,
            world_size=self.world_size,
            findings=tuple(ordered(self.findings)),
            explained=self.explained,
            deepspeed=self.deepspeed,
            values=(*values, *self.made),
        )

    def _explain_arguments(self, source: Source) -> None:
        found = explain_arguments(
            source.tree,
            self.asked.table(FileKind.TRAINING_ARGS),
            file=source.name,
            syntax=source.file.syntax,
            world_size=self.world_size,
        )
        self._keep(source.name, found)

    def _explain_yaml(self, source: Source) -> None:
        table = self.asked.table(FileKind.ACCELERATE)
        self.run, keys = accelerate_run(
            source.tree,
            table,
            file=source.name,
            world_size=self.asked.world_size,
            has_arguments=self.arguments is not None,
        )
        self._keep(source.name, explain_accelerate(self.run, keys, table))
        if self.run.is_flat and not self.json:
            self._made_by_accelerate(self.run, source.name)

    def _made_by_accelerate(self, run: AccelerateRun, name: str) -> None:
        """Resolve the DeepSpeed configuration that the flat keys make; what is wrong with it is said of the YAML."""
        arguments = self._arguments_tree()
        tree = plugin_config(run, precision=precision_of(arguments))
        if self.arguments and arguments is not None:
            names = {"file": name, "arguments_file": self.arguments.name}
            table = self.asked.table(FileKind.TRAINING_ARGS)
            self.findings += flat_disagreements(arguments, tree, table, **names)
        found = explain_deepspeed(
            tree,
            self.asked.table(FileKind.DEEPSPEED),
            file=name,
            around=self._around(),
            non_data_ranks=run.non_data_ranks,
        )
        self.deepspeed = found.tree
        origins = (Origin.AUTO, Origin.DERIVED, Origin.LAUNCHER)
        kept = [
            each if each.origin in origins else replace(each, by=name)
            for each in found.values
            if each.origin is not Origin.DEFAULT
        ]
        defaults = [each for each in found.values if each.origin is Origin.DEFAULT]
        self.made = tuple(replace(each, key=f"DeepSpeed {each.key}") for each in (*kept, *defaults))

    def _explain_json(self, tree: Tree, name: str, *, inside: str = "") -> None:
        table = self.asked.table(FileKind.DEEPSPEED)
        found = explain_deepspeed(
            tree,
            table,
            file=name,
            around=self._around(),
            non_data_ranks=self.run.non_data_ranks if self.run else 1,
            largest_parameter=self.asked.largest_parameter,
        )
        self.deepspeed = found.tree
        arguments = self._arguments_tree()
        if arguments is not None:
            more = disagreements(
                arguments,
                tree,
                self.asked.table(FileKind.TRAINING_ARGS),
                file=name,
                world_size=self.world_size,
                arguments_file=self.arguments.name if self.arguments and not inside else None,
            )
            found = replace(found, findings=(*found.findings, *more))
        if inside:
            found = _moved(found, inside)
            self.findings += found.findings
            self.made = found.values
        else:
            self._keep(name, found)

    def _around(self) -> Surroundings:
        arguments = self._arguments_tree()
        table = self.asked.table(FileKind.TRAINING_ARGS)
        return Surroundings(
            launcher=self.launcher,
            arguments=None if arguments is None else with_defaults(arguments, table),
            yaml=self.yaml.tree if self.yaml else None,
            world_size=self.world_size,
            hidden_size=self.asked.hidden_size,
        )

    def _arguments_tree(self) -> Tree | None:
        return self.explained[self.arguments.name].tree if self.arguments and self.arguments.tree else None

    def _keep(self, name: str, found: Explained) -> None:
        self.explained[name] = found
        self.findings += found.findings

    def _missing(self) -> None:
        is_idle = self.run is not None and self.run.kind != "DEEPSPEED"
        for each in self.sources.missing:
            if not is_idle:
                message = f"{each.key} names {each.name}, which is neither here nor beside {each.named_by}"
                fix = "give it as a second FILE; launchers look for it from the folder they are started in"
                self.findings.append(_said(Severity.WARNING, Topic.HINT, each.named_by, each.key, message, fix))


def _moved(found: Explained, prefix: str) -> Explained:
    """Return what was found in a block with the keys of the file that it stands in."""
    findings = tuple(
        replace(
            each,
            key=f"{prefix}{each.key}" if each.key else prefix.rstrip("."),
            repairs=tuple(_moved_repair(repair, prefix) for repair in each.repairs),
        )
        for each in found.findings
    )
    values = tuple(replace(each, key=f"{prefix}{each.key}") for each in found.values)
    return replace(found, findings=findings, values=values)


def _moved_repair(repair: Repair, prefix: str) -> Repair:
    value = f"{prefix}{repair.value}" if repair.action is Action.RENAME else repair.value
    return replace(repair, key=f"{prefix}{repair.key}", value=value)


def _told_launcher(sources: Sources) -> Launcher:
    """Return the launcher that the files tell: who else would fill in "auto"?"""
    if sources.of(FileKind.TRAINING_ARGS):
        return Launcher.TRAINER
    if sources.of(FileKind.ACCELERATE):
        return Launcher.ACCELERATE
    source = sources.of(FileKind.DEEPSPEED)
    table = shipped_table("deepspeed")
    has_auto = source is not None and any(wants_filling(*leaf, table) for leaf in leaves(source.tree))
    return Launcher.TRAINER if has_auto else Launcher.DEEPSPEED


def _unknown_kind(source: Source) -> Finding:
    message = "no key tells what this file is: neither a DeepSpeed JSON, an accelerate YAML nor TrainingArguments"
    fix = "say which with --kind"
    return _said(Severity.ERROR, Topic.UNKNOWN_FILE, source.name, "", message, fix)


def _said(severity: Severity, topic: Topic, file: str, key: str, message: str, fix: str) -> Finding:
    return Finding(severity=severity, topic=topic, file=file, key=key, message=message, fix=fix)
