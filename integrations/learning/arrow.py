"""A batch of a Parquet file as numpy columns. Needs pyarrow."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvferry.integrations.learning.chunk import Bools, Floats


class Batch:
    """Columns by their dotted names; one that an older file lacks is all nulls."""

    def __init__(self, batch: Any) -> None:
        import pyarrow
        import pyarrow.compute

        self._pa, self._compute, self._batch = pyarrow, pyarrow.compute, batch
        self.rows: int = batch.num_rows

    def column(self, name: str, kind: str = "float64") -> Any:
        """The column as an Arrow array; a null anywhere above a value makes that null, too."""
        top, *rest = name.split(".")
        found: Any = self._batch.column(top) if top in self._batch.schema.names else None
        for part in rest:
            if found is None or found.type.get_field_index(part) < 0:
                found = None
                break
            found = self._compute.struct_field(found, part)
        if found is None:
            return self._pa.nulls(self.rows, getattr(self._pa, kind)())
        return found

    def floats(self, name: str) -> Floats:
        """NaN for null."""
        column = self.column(name).cast(self._pa.float64())
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)

    def equal(self, name: str, value: Any) -> Bools:
        """False for null."""
        found = self._compute.equal(self.column(name, "string"), value)
        return np.asarray(self._compute.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)

    def lengths(self, name: str) -> Any:
        """Of lists; 0 for null."""
        column = self.column(name)
        if self._pa.types.is_floating(column.type):
            return np.zeros(self.rows, np.int64)
        lengths = self._compute.fill_null(self._compute.list_value_length(column), 0)
        return lengths.to_numpy(zero_copy_only=False)

    def listed(self, name: str, where: Bools, width: int) -> NDArray[np.float32]:
        """[N, width] of a list column, NaN but in the rows of `where`, whose lists have that length."""
        out = np.full((self.rows, width), np.nan, np.float32)
        if where.any():
            flat = self.column(name).filter(self._pa.array(where)).flatten().cast(self._pa.float64())
            with np.errstate(over="ignore"):
                out[where] = flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, width)
        return out

    def codes(self, name: str, values: Sequence[str]) -> NDArray[np.int8]:
        """The position of each string in `values`, -1 for another one or null."""
        found = self._compute.index_in(self.column(name, "string"), self._pa.array(values))
        return np.asarray(self._compute.fill_null(found, -1).to_numpy(zero_copy_only=False), np.int8)

    def there(self, name: str) -> Bools:
        """Where a value is not null."""
        return np.asarray(self.column(name, "string").is_valid().to_numpy(zero_copy_only=False), np.bool_)
