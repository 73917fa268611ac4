// ONNX Runtime's own kernel of a node, for the calls that it runs as fast: a model need not say how many rows come.
#pragma once

#include <memory>

#include "node.h"

namespace simdattn_onnxruntime {

/// A session of its own with one empty node and no threads: kernels are made from the information on a node of the
/// CPU's provider, which a node of a plug-in does not have.
class StockMaker {
 public:
  StockMaker();
  ~StockMaker();
  StockMaker(const StockMaker&) = delete;
  StockMaker& operator=(const StockMaker&) = delete;

  /// Null where ONNX Runtime has no such kernel. It must end before this object.
  OrtOp* make(const OrtNode* node, const Node& read) const;

 private:
  struct Empty;
  std::unique_ptr<Empty> op_;
  OrtCustomOpDomain* domain_ = nullptr;
  OrtSession* session_ = nullptr;
};

}  // namespace simdattn_onnxruntime
