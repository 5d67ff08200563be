// Streams as vector clocks, the state that all parts share, and races with the Python stack they were found
// at.
#pragma once
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <array>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

constexpr int kCards = 4, kPerCard = 40, kStreams = kCards * kPerCard;
struct Vec {
  std::array<uint64_t, kStreams> t{};
  void merge(const Vec& o) {
    for (int i = 0; i < kStreams; ++i) t[i] = std::max(t[i], o.t[i]);
  }
};
struct Access {
  int writer = -1;
  uint64_t written = 0;
  std::map<int, uint64_t> read;
  // Memory that is given back keeps who used it: whoever gets it next must not run before them.
  void retire() {
    if (writer >= 0) read[writer] = std::max(read[writer], written);
    writer = -1;
    written = 0;
  }
  void merge(const Access& o) {
    for (auto& [s, when] : o.read) read[s] = std::max(read[s], when);
  }
};

std::recursive_mutex mu;
Vec knows[kStreams];
uint64_t now_[kStreams];
Vec host;
int made[kCards];  // side streams made on a card
thread_local int current_stream[kCards] = {0, 0, 0, 0};
thread_local int current_device = 0;
int cards = 1;
bool strict = true, poison = true;
// Dry: what is larger than this is not computed (shapes come from the meta kernels), so that models of any
// size can be followed.
bool dry = false;
int64_t dry_above = 1 << 16;
std::vector<std::string> races, notes;
std::map<std::string, uint64_t> counts;
std::set<std::string> sync_ops;
uint64_t fail_at = 0, launched = 0;
bool lost = false;
std::string fail_kind;

int stream_index(int device, int64_t id) { return device * kPerCard + static_cast<int>(id); }
int here(int device) { return stream_index(device, current_stream[device]); }
int card_of(int s) { return s / kPerCard; }

std::string python_stack() {
  if (!Py_IsInitialized()) return "";
  py::gil_scoped_acquire gil;
  try {
    auto lines = py::module_::import("traceback").attr("format_stack")();
    return py::str("").attr("join")(lines).cast<std::string>();
  } catch (...) {
    return "";
  }
}

void race(const std::string& what, bool may_throw) {
  auto stack = python_stack();
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    races.push_back(what + "\n" + stack);
  }
  if (strict && may_throw) TORCH_CHECK(false, "pretend card: RACE: ", what);
}

}  // namespace
