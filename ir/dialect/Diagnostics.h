// MLIR's errors as Statuses. Included by MLIR translation units only.
#pragma once

#include <string>

#include "base/Status.h"
#include "ir/dialect/KtuneDialect.h"

namespace ktune::ir {

/// Collects MLIR's errors instead of printing them: they become the candidate's rejection.
class ErrorCollector {
 public:
  explicit ErrorCollector(mlir::MLIRContext* context)
      : handler_(context, [this](mlir::Diagnostic& diagnostic) {
          if (diagnostic.getSeverity() != mlir::DiagnosticSeverity::Error) return;
          if (!text_.empty()) text_ += "; ";
          text_ += diagnostic.str();
        }) {}
  [[nodiscard]] Status error(const char* what) const {
    return internalError(std::string(what) + (text_.empty() ? " failed" : ": " + text_));
  }

 private:
  std::string text_;
  mlir::ScopedDiagnosticHandler handler_;
};

}  // namespace ktune::ir
