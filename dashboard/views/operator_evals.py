"""Operators: eval sets are imported, run and made gates; runs are looked at, compared, cancelled, made the baseline."""

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from dashboard.form_errors import tell
from dashboard.once import once
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_eval_forms import GateForm, ImportForm, RunForm
from dashboard.operator_evals import compare_page, evals_page, run_page, set_page
from dashboard.telling import tell_next_page, telling
from headway.errors import HeadwayError, NotFound
from inference.services.evals.gates import remove_gate, set_gate
from inference.services.evals.reads import eval_set_with, gate_with
from inference.services.evals.runs import ask_for_run, cancel_run, run_with, set_baseline
from inference.services.evals.sets import eval_set_named, import_eval_set, set_label


@require_GET
@operators_only
def evals(request: HttpRequest) -> HttpResponse:
    return _evals(request)


@require_POST
@operators_only
def import_set(request: HttpRequest) -> HttpResponse:
    form = ImportForm(request.POST, request.FILES)
    if form.is_valid():
        asked = form.cleaned_data
        try:
            with once(request):
                made = import_eval_set(
                    name=asked["name"],
                    lines=asked["file"],
                    actor=actor_of(request),
                    format=asked["format"],
                    limit=asked["limit"],
                    description=asked["description"],
                )
            label = set_label(made.eval_set)
            messages.success(
                request, f"{label} has {made.eval_set.num_cases:,} cases" if made.is_new else f"It is there as {label}"
            )
            return redirect("operator_evals")
        except HeadwayError as error:
            tell(form, error)
    return _evals(request, import_form=form)


@require_POST
@operators_only
def run_set(request: HttpRequest) -> HttpResponse:
    form = RunForm(request.POST)
    if form.is_valid():
        model, version = form.model_and_version()
        try:
            with once(request):
                run = ask_for_run(
                    eval_set=eval_set_named(form.cleaned_data["eval_set"]),
                    model=model,
                    version=version,
                    actor=actor_of(request),
                    concurrency=form.cleaned_data["concurrency"],
                )
            return redirect("operator_eval_run", run.id)
        except HeadwayError as error:
            tell(form, error)
    return _evals(request, run_form=form)


@require_POST
@operators_only
def gate(request: HttpRequest) -> HttpResponse:
    form = GateForm(request.POST)
    if form.is_valid():
        asked = {**form.cleaned_data, "eval_set": eval_set_named(form.cleaned_data["eval_set"])}
        try:
            with once(request):
                set_gate(actor=actor_of(request), **asked)
            messages.success(request, f"{set_label(asked['eval_set'])} is a gate of {asked['model']}")
            return redirect("operator_evals")
        except HeadwayError as error:
            tell(form, error)
    return _evals(request, gate_form=form)


@require_POST
@operators_only
def drop_gate(request: HttpRequest, gate_id: int) -> HttpResponse:
    try:
        found = gate_with(gate_id)
        remove_gate(model=found.model.public_id, eval_set=found.eval_set, actor=actor_of(request))
    except HeadwayError as error:
        tell_next_page(request, error)
    else:
        messages.success(request, f"{set_label(found.eval_set)} is no gate of {found.model} any more")
    return redirect("operator_evals")


@require_GET
@operators_only
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    try:
        page = run_page(run_id, request.GET)
    except NotFound as error:
        raise Http404(error.message) from None
    against = request.GET.get("against", "")
    if against.isdecimal() and len(against) < 19:
        return redirect("operator_eval_compare", run_id, int(against))
    return render(request, "operator/eval_run.html", {"page": page})


@require_GET
@operators_only
def compare(request: HttpRequest, run_id: int, against_id: int) -> HttpResponse:
    try:
        page = compare_page(run_id, against_id, request.GET)
    except NotFound as error:
        raise Http404(error.message) from None
    except HeadwayError as error:
        tell_next_page(request, error)
        return redirect("operator_eval_run", run_id)
    return render(request, "operator/eval_compare.html", {"page": page})


@require_POST
@operators_only
def cancel(request: HttpRequest, run_id: int) -> HttpResponse:
    with telling(request, "It is cancelled; what was answered is kept"):
        cancel_run(run=run_with(run_id), actor=actor_of(request))
    return redirect("operator_eval_run", run_id)


@require_POST
@operators_only
def baseline(request: HttpRequest, run_id: int) -> HttpResponse:
    with telling(request, "Other runs of this set on this model are held against it"):
        set_baseline(run=run_with(run_id), actor=actor_of(request))
    return redirect("operator_eval_run", run_id)


@require_GET
@operators_only
def eval_set(request: HttpRequest, set_id: int) -> HttpResponse:
    try:
        found = eval_set_with(set_id)
    except NotFound as error:
        raise Http404(error.message) from None
    return render(request, "operator/eval_set.html", {"page": set_page(found, request.GET)})


def _evals(
    request: HttpRequest,
    *,
    import_form: ImportForm | None = None,
    run_form: RunForm | None = None,
    gate_form: GateForm | None = None,
) -> HttpResponse:
    """With a form that was refused, as it was filled in."""
    shown = {
        "page": evals_page(request.GET),
        "import_form": import_form or ImportForm(),
        "run_form": run_form or RunForm(),
        "gate_form": gate_form or GateForm(),
    }
    return render(request, "operator/evals.html", shown)
