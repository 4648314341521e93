"""What a JSON file is expected to look like, and an error that names the place where it does not."""

import reprlib
from typing import Any

from datransformer.data.errors import InputError

# A type; ``float``, which any finite number is; ``(form,)``, such or null; ``[form]``, a list of such; ``{str: form}``,
# an object of such; or an object with these keys at least, of which one that ends in ``?`` may be missing.
Form = Any
LARGEST = 1e100  # so that squares are finite too
NAMES = {str: "a text", int: "a whole number", float: "a finite number", dict: "an object", list: "a list"}


def check_form(where: str, value: Any, form: Form) -> None:
    """Raise an InputError that says where ``value`` is not of a form.

    Args:
        where: What the value is called; "" for that of a whole file.
        value: What JSON gave.
        form: What it should be.
    """
    if isinstance(form, type):
        if not _is_a(value, form):
            raise InputError(f"{where}: got {reprlib.repr(value)}, expected {NAMES[form]}")
        return
    if isinstance(form, tuple):
        if value is not None:
            check_form(where, value, form[0])
        return
    check_form(where, value, type(form))
    if isinstance(form, list):
        for number, item in enumerate(value):
            check_form(f"{where}[{number}]", item, form[0])
        return
    forms = dict.fromkeys(value, form[str]) if str in form else form
    for key, expected in forms.items():
        name = key.removesuffix("?")
        place = f"{where}.{name}" if where else name
        if name in value:
            check_form(place, value[name], expected)
        elif name == key:
            raise InputError(f"{place}: missing")


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= LARGEST
    if kind is int:
        return isinstance(value, int) and abs(value) <= LARGEST
    return isinstance(value, kind)
