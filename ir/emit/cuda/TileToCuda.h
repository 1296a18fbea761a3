// Prints tile programs as CUDA C++. Included by MLIR translation units only.
#pragma once

#include "ir/dialect/KtuneDialect.h"

namespace ktune::emit {

/// One kernel (a function of tile operations, made for cuda) as source text.
/// Errors: kInternal naming the operation that has no form in CUDA C++.
[[nodiscard]] Result<std::string> printKernel(mlir::func::FuncOp kernel);

}  // namespace ktune::emit
