"""Average precision where some sizes of objects are missing."""

from __future__ import annotations

import pytest

from stepsnet.dense.results import average_precision


@pytest.mark.parametrize("score", [0.9, None])
def test_sizes_without_objects_have_no_average_precision(score: float | None) -> None:
    box = [2.0, 2.0, 10.0, 10.0]  # a small one
    truth = {
        "images": [{"id": 1, "height": 64, "width": 64}],
        "categories": [{"id": 1, "name": "thing"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "area": 100.0, "iscrowd": 0}],
    }
    results = [] if score is None else [{"image_id": 1, "category_id": 1, "bbox": box, "score": score}]
    expected = 0.0 if score is None else 1.0
    names = ("box_ap", "box_ap50", "box_ap75", "box_ap_small")
    assert average_precision(truth, results, "bbox") == pytest.approx(dict.fromkeys(names, expected), abs=1e-6)
