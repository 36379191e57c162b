"""Operators: evals over REST, by the same services as pages and commands."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from inference.api import eval_shapes as e
from inference.eval_models import EvalCase, EvalGate, EvalRun, EvalSample, EvalSet
from inference.services.evals.gates import remove_gate, set_gate
from inference.services.evals.reads import (
    cases_of,
    compared,
    comparison_values,
    eval_gates,
    eval_runs,
    eval_set_with,
    eval_sets,
    gate_with,
    run_values,
    samples_of,
)
from inference.services.evals.runs import ask_for_run, cancel_run, run_with, set_baseline
from inference.services.evals.sets import eval_set_named, import_eval_set, set_label
from tenants.api.base import OperatorView


class EvalSets(OperatorView):
    @extend_schema(operation_id="operator_eval_sets_list", responses=e.EvalSetShape(many=True))
    def get(self, _request: Request) -> Response:
        """Newest first."""
        return self.page(eval_sets(), e.EvalSetShape, ordering=("-id",), prepare=set_values)

    @extend_schema(operation_id="operator_eval_sets_import", request=e.NewEvalSet, responses={201: e.EvalSetShape})
    def post(self, _request: Request) -> Response:
        """Whole or not at all; the same cases under the same name are given back as they are."""
        asked = self.read(e.NewEvalSet)
        lines = [line.encode(errors="surrogatepass") for line in asked.pop("content").split("\n")]
        made = import_eval_set(lines=lines, actor=self.actor, **asked)
        return Response(e.EvalSetShape(set_values(made.eval_set)).data, status=201)


class OneEvalSet(OperatorView):
    @extend_schema(operation_id="operator_eval_sets_read", responses=e.EvalSetShape)
    def get(self, _request: Request, set_id: int) -> Response:
        return Response(e.EvalSetShape(set_values(eval_set_with(set_id))).data)


class EvalCases(OperatorView):
    @extend_schema(operation_id="operator_eval_sets_cases", responses=e.EvalCaseShape(many=True))
    def get(self, _request: Request, set_id: int) -> Response:
        rows = cases_of(eval_set_with(set_id))
        return self.page(rows, e.EvalCaseShape, ordering=("position",), prepare=case_values)


class EvalRuns(OperatorView):
    @extend_schema(operation_id="operator_eval_runs_list", parameters=[e.EvalRunsAsked], responses=e.EvalRunShape(many=True))
    def get(self, _request: Request) -> Response:
        """Newest first."""
        asked = self.read_query(e.EvalRunsAsked, is_paged=True)
        eval_set = eval_set_named(asked["eval_set"]) if "eval_set" in asked else None
        rows = eval_runs(model=asked.get("model", ""), eval_set=eval_set)
        return self.page(rows, e.EvalRunShape, ordering=("-id",), prepare=run_values)

    @extend_schema(operation_id="operator_eval_runs_create", request=e.NewEvalRun, responses={202: e.EvalRunShape})
    def post(self, _request: Request) -> Response:
        """A worker asks its cases through the gateway, at batch tier: look at it until it is over."""
        asked = self.read(e.NewEvalRun)
        run = ask_for_run(eval_set=eval_set_named(asked.pop("eval_set")), actor=self.actor, **asked)
        return _run(run, status=202)


class OneEvalRun(OperatorView):
    @extend_schema(operation_id="operator_eval_runs_read", responses=e.EvalRunShape)
    def get(self, _request: Request, run_id: int) -> Response:
        return _run(run_with(run_id))


class EvalSamples(OperatorView):
    @extend_schema(
        operation_id="operator_eval_runs_samples", parameters=[e.SamplesAsked], responses=e.EvalSampleShape(many=True)
    )
    def get(self, _request: Request, run_id: int) -> Response:
        """In the order of its cases, which were inserted in order."""
        asked = self.read_query(e.SamplesAsked, is_paged=True)
        rows = samples_of(run_with(run_id), outcome=asked.get("outcome", ""))
        return self.page(rows, e.EvalSampleShape, ordering=("case_id",), prepare=sample_values)


class EvalComparison(OperatorView):
    @extend_schema(operation_id="operator_eval_runs_compare", responses=e.ComparisonShape)
    def get(self, _request: Request, run_id: int, against_id: int) -> Response:
        """On the cases that both have answered; runs of the same set alone."""
        found = compared(run_with(run_id), run_with(against_id))
        return Response(e.ComparisonShape(comparison_values(found)).data)


class CancelEvalRun(OperatorView):
    @extend_schema(operation_id="operator_eval_runs_cancel", request=None, responses=e.EvalRunShape)
    def post(self, _request: Request, run_id: int) -> Response:
        """What was answered is kept."""
        cancel_run(run=run_with(run_id), actor=self.actor)
        return _run(run_with(run_id))


class EvalBaseline(OperatorView):
    @extend_schema(operation_id="operator_eval_runs_baseline", request=None, responses=e.EvalRunShape)
    def post(self, _request: Request, run_id: int) -> Response:
        """Other runs of the set on this model are held against it."""
        set_baseline(run=run_with(run_id), actor=self.actor)
        return _run(run_with(run_id))


class EvalGates(OperatorView):
    @extend_schema(operation_id="operator_eval_gates_list", parameters=[e.GatesAsked], responses=e.EvalGateShape(many=True))
    def get(self, _request: Request) -> Response:
        rows = eval_gates(self.read_query(e.GatesAsked, is_paged=True).get("model", ""))
        return self.page(rows, e.EvalGateShape, ordering=("-id",), prepare=gate_values)

    @extend_schema(operation_id="operator_eval_gates_set", request=e.NewEvalGate, responses={201: e.EvalGateShape})
    def post(self, _request: Request) -> Response:
        """Make it, or change the one there is of that set and model."""
        asked = self.read(e.NewEvalGate)
        gate = set_gate(eval_set=eval_set_named(asked.pop("eval_set")), actor=self.actor, **asked)
        return Response(e.EvalGateShape(gate_values(gate_with(gate.pk))).data, status=201)


class OneEvalGate(OperatorView):
    @extend_schema(operation_id="operator_eval_gates_read", responses=e.EvalGateShape)
    def get(self, _request: Request, gate_id: int) -> Response:
        return Response(e.EvalGateShape(gate_values(gate_with(gate_id))).data)

    @extend_schema(operation_id="operator_eval_gates_remove", responses={204: None})
    def delete(self, _request: Request, gate_id: int) -> Response:
        gate = gate_with(gate_id)
        remove_gate(model=gate.model.public_id, eval_set=gate.eval_set, actor=self.actor)
        return Response(status=204)


def set_values(eval_set: EvalSet) -> dict[str, Any]:
    names = ("id", "description", "digest", "created_at", "created_by")
    return {name: getattr(eval_set, name) for name in names} | {
        "eval_set": set_label(eval_set),
        "cases": eval_set.num_cases,
    }


def case_values(case: EvalCase) -> dict[str, Any]:
    return {"case": case.case_id, "position": case.position, **case.content}


def sample_values(sample: EvalSample) -> dict[str, Any]:
    names = ("has_passed", "score", "checks", "text", "finish_reason", "error", "request_id", "latency_ms")
    tokens = ("prompt_tokens", "completion_tokens")
    return {name: getattr(sample, name) for name in (*names, *tokens)} | {"case": sample.case.case_id}


def gate_values(gate: EvalGate) -> dict[str, Any]:
    names = ("id", "min_score", "max_drop", "confidence", "created_at", "created_by")
    return {name: getattr(gate, name) for name in names} | {
        "model": gate.model.public_id,
        "eval_set": set_label(gate.eval_set),
    }


def _run(run: EvalRun, *, status: int = 200) -> Response:
    return Response(e.EvalRunShape(run_values(run)).data, status=status)
