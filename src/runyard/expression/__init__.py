"""GitHub's expressions: text to syntax to value; conditions; templates.

In: texts, Templates, contexts and functions as plain data. Out: JSON values, trees, Templates, ExpressionErrors. Pure:
no I/O, no clock; follows the server's engine (job-semantics 1), with GitHub's lenient JSON as an option (deviation D8).
Read `parser.py` first, then `evaluator.py`, `scanner.py` and `templates.py`.
"""

from runyard.expression.conditions import (
    calls_status_function,
    evaluate_condition,
    has_status_function,
    job_status_functions,
    step_status_functions,
    unwrapped_condition,
    wrap_condition,
)
from runyard.expression.errors import ErrorKind, ExpressionError, TemplateError
from runyard.expression.evaluator import evaluate, evaluate_text
from runyard.expression.frame import RAW, STRICT_GITHUB, TEMPLATE, Functions, Looked, Options
from runyard.expression.json_text import to_json_text
from runyard.expression.numbers import number_text, parse_number
from runyard.expression.ordinal import fold
from runyard.expression.parser import MAX_DEPTH, MAX_LENGTH, FunctionNames, parse
from runyard.expression.references import (
    References,
    expressions,
    references,
    references_of,
    template_references,
)
from runyard.expression.scanner import parse_text
from runyard.expression.signatures import (
    BUILT_IN,
    JOB_CONDITION_FUNCTIONS,
    KNOWN,
    STATUS_FUNCTIONS,
    STEP_CONDITION_FUNCTIONS,
    STEP_FUNCTIONS,
    Arity,
)
from runyard.expression.syntax import Node, source
from runyard.expression.templates import MANIFEST_DEPTH, Want, coerce, evaluate_template
from runyard.expression.values import (
    ExactObject,
    FoldedObject,
    Kind,
    equals,
    greater,
    is_true,
    kind_of,
    to_number,
    to_text,
)

__all__ = [
    "BUILT_IN",
    "JOB_CONDITION_FUNCTIONS",
    "KNOWN",
    "MANIFEST_DEPTH",
    "MAX_DEPTH",
    "MAX_LENGTH",
    "RAW",
    "STATUS_FUNCTIONS",
    "STEP_CONDITION_FUNCTIONS",
    "STEP_FUNCTIONS",
    "STRICT_GITHUB",
    "TEMPLATE",
    "Arity",
    "ErrorKind",
    "ExactObject",
    "ExpressionError",
    "FoldedObject",
    "FunctionNames",
    "Functions",
    "Kind",
    "Looked",
    "Node",
    "Options",
    "References",
    "TemplateError",
    "Want",
    "calls_status_function",
    "coerce",
    "equals",
    "evaluate",
    "evaluate_condition",
    "evaluate_template",
    "evaluate_text",
    "expressions",
    "fold",
    "greater",
    "has_status_function",
    "is_true",
    "job_status_functions",
    "kind_of",
    "number_text",
    "parse",
    "parse_number",
    "parse_text",
    "references",
    "references_of",
    "source",
    "step_status_functions",
    "template_references",
    "to_json_text",
    "to_number",
    "to_text",
    "unwrapped_condition",
    "wrap_condition",
]
