from dataclasses import replace

import pytest

from datransformer.experiments.paper import Printed
from datransformer.report.statistics import Interval, compare, correct
from datransformer.report.tables import Column, Row, escaped, results_table, word_table

ACCURACY = Column("ag accuracy", "AG accuracy")
ERROR = Column("rmse", "RMSE", percent=False, digits=3, higher_is_better=False)

VANILLA = Row("vanilla", "Transformer", {"ag accuracy": [0.91, 0.93], "rmse": [0.9, 0.9]})
XL = Row("xl", "Transformer-XL", {"ag accuracy": [0.93, 0.94], "rmse": [0.8]})
OURS = Row("distance_aware", "DA-Transformer", {"ag accuracy": [0.9401, 0.9501], "rmse": [0.7, 0.75]})
LINEAR = Row("linear", "TF-IDF", {"ag accuracy": [0.92]}, in_the_paper=False)


def table_of(page: str) -> list[list[str]]:
    """The cells of the lines below the head."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def notes_of(page: str) -> list[str]:
    return [line for line in page.splitlines() if line and not line.startswith("|")]


def test_table_by_hand() -> None:
    assert table_of(results_table([ACCURACY, ERROR], [VANILLA, XL, OURS])) == [
        ["method", "AG accuracy", "RMSE"],
        ["---", "---:", "---:"],
        ["Transformer", "92.00 ± 1.41", "0.900 ± 0.000"],
        ["Transformer-XL", "<u>93.50</u> ± 0.71", "<u>0.800</u>"],
        ["DA-Transformer", "**94.51** ± 0.71", "**0.725** ± 0.035"],
    ]


def test_methods_that_the_paper_lacks_stand_below_and_compete() -> None:
    best = replace(LINEAR, scores={"ag accuracy": [0.99]})
    page = results_table([ACCURACY], [best, VANILLA, OURS])
    assert [row[:2] for row in table_of(page)[2:]] == [
        ["Transformer", "92.00 ± 1.41"],
        ["DA-Transformer", "<u>94.51</u> ± 0.71"],
        ["*not in the paper*", ""],
        ["TF-IDF", "**99.00**"],
    ]
    assert "not in the paper" not in results_table([ACCURACY], [VANILLA, OURS])
    assert "not in the paper" not in results_table([ACCURACY], [LINEAR])


def test_the_paper_s_number_stands_beside_ours() -> None:
    printed = replace(OURS, paper={"ag accuracy": Printed(93.72, 0.11)})
    rows = table_of(results_table([ACCURACY, ERROR], [VANILLA, printed, LINEAR]))
    assert rows[0] == ["method", "AG accuracy", "paper", "RMSE"]
    assert [row[2] for row in rows[2:]] == ["", "93.72 ± 0.11", "", ""]
    assert all(len(row) == 4 for row in rows)


def test_missing_and_fewer_runs_are_named() -> None:
    empty = Row("rpr", "RPR", {"rmse": []})
    page = results_table([ACCURACY, ERROR], [VANILLA, XL, OURS, LINEAR, empty])
    assert table_of(page)[-1] == ["TF-IDF", "92.00", "—"]
    assert notes_of(page) == [
        "— no runs. AG accuracy: RPR; RMSE: TF-IDF, RPR.",
        "Fewer than 2 runs. RMSE: Transformer-XL (1).",  # a linear model draws nothing at random
    ]
    assert notes_of(results_table([ACCURACY], [VANILLA, XL, OURS])) == []


def test_what_looks_the_same_is_marked_the_same() -> None:
    near = replace(XL, scores={"ag accuracy": [0.945101]})  # 94.51 as well
    rows = table_of(results_table([ACCURACY], [VANILLA, near, OURS]))
    assert [row[1] for row in rows[2:]] == ["<u>92.00</u> ± 1.41", "**94.51**", "**94.51** ± 0.71"]


def test_nothing_stands_out_where_nothing_differs() -> None:
    twin = replace(OURS, method="twin")
    assert "**" not in results_table([ACCURACY], [OURS])
    assert "**" not in results_table([ACCURACY], [OURS, twin])


RUNS = {"xl": {0: 0.90, 1: 0.91, 2: 0.905}, "distance_aware": {0: 0.95, 1: 0.958, 2: 0.951}, "vanilla": {0: 0.8}}


def rows_of(runs: dict[str, dict[int, float]]) -> list[Row]:
    labels = {"xl": "Transformer-XL", "distance_aware": "DA-Transformer", "vanilla": "Transformer"}
    return [Row(method, labels[method], {"ag accuracy": scores}) for method, scores in runs.items()]


def test_a_star_brings_its_numbers() -> None:
    comparison = correct({"ag accuracy": compare(RUNS, "distance_aware"), "sst": compare(RUNS, "distance_aware")})
    interval = Interval(0.048, 0.031, 0.0649, 0.95, 7600, 10_000)
    given = {"ag accuracy": replace(comparison["ag accuracy"], interval=interval)}
    page = results_table([ACCURACY], rows_of(RUNS), given)
    assert table_of(page)[3] == ["DA-Transformer", r"**95.30**\* ± 0.44"]
    # Means 95.3 and 90.5; variances 0.19 and 0.25; t = 4.8 / √(0.44 / 3) = 12.53 with 3.93 degrees of freedom;
    # d = 4.8 / √0.22; differences 5, 4.8, 4.6: d_z = 4.8 / 0.2, t = 24 √3 with 2 degrees. Twice p by Holm.
    notes = notes_of(page)
    assert notes[:2] == [
        "AG accuracy: DA-Transformer − Transformer-XL = +4.80 points; Welch's t-test p = 0.00026 "
        "(Holm over 2: p = 0.00052), d = +10.23.",
        r"\* better than the method it is compared with above, at p < 0.05 in Welch's t-test, after Holm's correction "
        "where there is one.",
    ]
    assert notes[-3:] == [
        "<details><summary>By pairs of seeds, and by test items</summary>",
        "- AG accuracy: paired t-test p = 0.00058 (Holm over 2: p = 0.001), d_z = +24.00; 95 % interval over 7,600 "
        "items, for these runs, [+3.10, +6.49].",
        "</details>",
    ]


def test_correction_can_take_the_star_away() -> None:
    runs = {"xl": {0: 0.90, 1: 0.92, 2: 0.91}, "distance_aware": {0: 0.93, 1: 0.95, 2: 0.935}}
    alone = compare(runs, "distance_aware")
    assert alone.welch.p is not None
    assert 0.025 < alone.welch.p < 0.05
    page = results_table([ACCURACY], rows_of(runs), {"ag accuracy": alone})
    assert r"**93.83**\*" in page
    assert "(not corrected)" in page
    family = correct({"ag accuracy": alone, "sst": alone})
    page = results_table([ACCURACY], rows_of(runs), family)  # a comparison without a column is left out
    assert r"\*" not in page
    assert "Holm over 2: p = 0.0" in page
    assert "better than the method" not in page


def test_no_star_for_a_loss_and_the_line_says_what_was_lost() -> None:
    page = results_table([ACCURACY], rows_of(RUNS), {"ag accuracy": compare(RUNS, "xl")})
    assert r"\*" not in page
    assert "Transformer-XL − DA-Transformer = -4.80 points; Welch's t-test p = 0.00026 (not corrected), d = -10" in page


def test_a_lower_error_is_starred() -> None:
    runs = {"xl": [0.90, 0.91, 0.905], "distance_aware": [0.80, 0.81, 0.805]}
    rows = [Row(method, method, {"rmse": scores}) for method, scores in runs.items()]
    page = results_table([ERROR], rows, {"rmse": compare(runs, "distance_aware", higher_is_better=False)})
    assert r"**0.805**\* ± 0.005" in page
    assert "distance_aware − xl = -0.100, less is better; Welch's" in page
    assert "<details>" not in page  # runs without seeds are no pairs


def test_a_test_that_could_not_be_made_says_why() -> None:
    page = results_table([ACCURACY], rows_of(RUNS), {"ag accuracy": compare(RUNS, "vanilla")})
    assert "Welch's t-test: no p, a method with one run has no spread to test against." in page
    assert r"\*" not in page


@pytest.mark.parametrize(("gap", "shown"), [(0.9, "p < 0.0001"), (0.0, "p = 1.000")])
def test_p_values_are_shown_as_far_as_they_say_something(gap: float, shown: str) -> None:
    runs = {"xl": [0.01, 0.011, 0.012], "distance_aware": [0.01 + gap, 0.011 + gap, 0.012 + gap]}
    rows = [Row(method, method, {"ag accuracy": scores}) for method, scores in runs.items()]
    assert shown in results_table([ACCURACY], rows, {"ag accuracy": compare(runs, "distance_aware")})


def test_words_are_not_set_to_the_right() -> None:
    assert word_table(["a", "b"], [["c", "d"]]) == ["| a | b |", "| --- | --- |", "| c | d |"]


def test_a_text_stays_one_line_in_one_cell() -> None:
    assert escaped("a\u2028b\r\n| c\\") == "a b \\| c\\\\"
    assert escaped("<a href='x'>&amp;") == "&lt;a href='x'&gt;&amp;amp;"
    assert escaped(0.5) == "0.5"
