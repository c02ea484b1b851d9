"""Number formats and how many bytes one element takes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """A number format; compare with `is`."""

    name: str
    itemsize: int
    is_floating_point: bool = True

    def __str__(self) -> str:
        return self.name


float64 = DType("float64", 8)
float32 = DType("float32", 4)
bfloat16 = DType("bfloat16", 2)
float16 = DType("float16", 2)
float8_e4m3fn = DType("float8_e4m3fn", 1)
int64 = DType("int64", 8, is_floating_point=False)
int32 = DType("int32", 4, is_floating_point=False)
int16 = DType("int16", 2, is_floating_point=False)
int8 = DType("int8", 1, is_floating_point=False)
complex128 = DType("complex128", 16, is_floating_point=False)
complex64 = DType("complex64", 8, is_floating_point=False)
uint8 = DType("uint8", 1, is_floating_point=False)
bool_ = DType("bool", 1, is_floating_point=False)

BY_NAME = {"fp32": float32, "bf16": bfloat16, "fp16": float16}  # as options of a job name them


def promote(a: DType, b: DType) -> DType:
    """Return the type of `a + b` for two tensors (c10/core/ScalarType.cpp, promoteTypes)."""
    if a is b:
        return a
    if a.is_floating_point != b.is_floating_point:
        return a if a.is_floating_point else b
    if a.is_floating_point:
        if float64 in {a, b}:
            return float64
        return float32  # float32 with a 16-bit type, or bfloat16 with float16
    return max(a, b, key=lambda dtype: dtype.itemsize)


def named(name: str | None) -> DType | None:
    """Return the type that a job's option names, None for one that is not given."""
    return None if name is None else BY_NAME[name]
