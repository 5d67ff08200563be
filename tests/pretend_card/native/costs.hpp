// A pretended clock and the bytes that kernels move. Times are assumed, never measured: a launch keeps the
// host, a kernel keeps its stream for the bytes it moves, a wait brings the host to where the stream is.
#pragma once
#include "capture.hpp"

namespace {

struct Costs {  // microseconds, and bytes a microsecond
  double launch = 6, replay = 10, node = 1, wait = 15;
  double memory = 272e3, link = 12e3;
};
Costs costs;
bool clock_runs = false;  // else every event has happened when it is asked for
double host_time = 0;     // microseconds
double busy_until[kStreams];

// What a stream has before it: the host's place, then the bytes.
void occupy(int s, double microseconds) { busy_until[s] = std::max(busy_until[s], host_time) + microseconds; }

// Operators that look up rows: what they read is as large as what they give, not the whole table.
const std::set<std::string> looks_up = {
    "aten::embedding",        "aten::index_select",         "aten::index_select.out", "aten::index.Tensor",
    "aten::index.Tensor_out", "aten::_unsafe_index.Tensor", "aten::gather",           "aten::gather.out"};
// Operators that write into rows of what is there.
const std::set<std::string> writes_rows = {"aten::index_put_",
                                           "aten::_index_put_impl_",
                                           "aten::index_copy_",
                                           "aten::index_copy.out",
                                           "aten::scatter_.src",
                                           "aten::index_add_",
                                           "aten::index_fill_.int_Scalar",
                                           "aten::scatter_.value"};

// Operators that do not look at what they write over.
const std::set<std::string> overwrites = {
    "aten::zero_",   "aten::fill_.Scalar", "aten::fill_.Tensor", "aten::normal_",         "aten::uniform_",
    "aten::random_", "aten::random_.from", "aten::exponential_", "aten::bernoulli_.float"};

// Bytes that a kernel has to move for a tensor: each number once, though a broadcast shows it often.
double moved_bytes(const at::Tensor& t) {
  double n = static_cast<double>(t.dtype().itemsize());
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.stride(d) != 0) n *= static_cast<double>(t.size(d));
  return t.numel() ? n : 0;
}

void count_bytes(double read, double written) {
  counts["bytes read by kernels"] += static_cast<uint64_t>(read);
  counts["bytes written by kernels"] += static_cast<uint64_t>(written);
}

}  // namespace
