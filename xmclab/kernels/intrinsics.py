"""Instructions for compiled loops that Python has no syntax for. Imports numba: for modules of such loops only."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xmclab.kernels.dispatch import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

intrinsic: Any = import_module("numba.extending").intrinsic
types: Any = import_module("numba.types")
ir: Any = import_module("llvmlite.ir")

LINE = 64  # bytes that arrive from memory together


@intrinsic  # type: ignore[untyped-decorator]
def fma(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    return a(a, b, c), lambda context, builder, signature, arguments: builder.fma(*arguments)


@intrinsic  # type: ignore[untyped-decorator]
def widened(_: Any, x: Any) -> Any:
    """A number unchanged, or the float32 whose upper half is the bits of an integer (bfloat16)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        upper = builder.shl(builder.zext(arguments[0], ir.IntType(32)), ir.IntType(32)(16))
        return builder.bitcast(upper, ir.FloatType())

    if isinstance(x, types.Integer):
        return types.float32(x), generate
    return x(x), lambda context, builder, signature, arguments: arguments[0]


@jit
def ask_for(flat: NDArray[Any], start: int, end: int) -> None:
    """Prefetch these numbers of a flat array."""
    for place in range(start, end, LINE // flat.itemsize):
        _prefetch(flat, place)


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(_: Any, flat: Any, place: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], fnty=shape)
        builder.call(function, [address, number(0), number(3), number(1)])  # to be read, into all caches, data
        return context.get_dummy_value()

    return types.void(flat, place), generate
