// A graph while it is captured: which streams belong to it, what its kernels have changed, and what CUDA
// refuses meanwhile (cudaErrorStreamCapture..., CUDA runtime API, "Stream management" and "Error handling").
#pragma once
#include "memory.hpp"

namespace {

// What a node reads or writes, by address: a graph knows no tensors. `born` tells an allocation from a later
// one at the same place.
struct Ref {
  char* at;
  size_t bytes;
  bool write, on_card;
  uint64_t born;
  int pool;
};
struct Node {
  std::string name;
  std::vector<Ref> refs;
  double read = 0, written = 0;                        // bytes
  std::function<void(int)> again;                      // on a stream; null for what is only followed
  std::function<std::pair<double, double>()> measure;  // bytes, where they depend on what the operands say
};
struct Graph {
  int device = 0, pool = 0;
  bool captured = false;
  uint64_t replays = 0;
  size_t own_bytes = 0;  // what the driver keeps for its nodes
  std::vector<Node> nodes;
  ~Graph();  // gives its memory back
};

struct Saved {
  char* at;
  std::vector<char> bytes;
};
// torch lets one capture be under way in a process.
struct Capture {
  uint64_t id;
  Graph* graph;
  int device, origin, pool;
  std::thread::id thread;
  std::string mode, broken;
  std::set<int> streams;
  std::map<int, uint64_t> last;     // of each stream's nodes, on its clock
  std::map<Block*, Access> before;  // who had used it: a capture runs nothing
  std::vector<Saved> saved;         // what it held
  std::set<std::pair<char*, size_t>> saved_places;
};
std::unique_ptr<Capture> capture;
uint64_t captures = 0;

bool captured(int s) { return capture && capture->streams.count(s); }
bool captures_here() { return capture && capture->thread == std::this_thread::get_id(); }

[[noreturn]] void capture_error(int code, const std::string& what) {
  static const std::map<int, const char*> says = {
      {900, "operation not permitted when stream is capturing"},
      {901, "operation failed due to a previous error during capture"},
      {903, "the stream does not own the capture"},
      {904, "capturing stream has unjoined work"},
      {905, "dependency created on uncaptured work in another stream"},
      {906, "operation would make the legacy stream depend on a capturing blocking stream"},
      {907, "operation not permitted on an event last recorded in a capturing stream"}};
  if (capture && capture->broken.empty()) capture->broken = what;
  throw c10::AcceleratorError({__func__, __FILE__, 0}, code,
                              c10::str("CUDA error: ", says.at(code), " (pretend card: ", what, ")"));
}

// For what may make the host wait or free memory: prohibited in all threads in mode "global", in the
// capturing one in "thread_local", and on captured streams always (cudaThreadExchangeStreamCaptureMode).
void refuse_in_capture(const std::string& what, int s = -1) {
  if (!capture) return;
  bool unsafe = capture->mode == "global" || (capture->mode == "thread_local" && captures_here());
  if (unsafe || captured(s)) capture_error(900, what);
}

// Work of the capturing thread on a stream that has not joined. CUDA itself runs it at once, beside the
// capture; in a program it is a forgotten wait, so it is refused here.
void require_joined(int s, const std::string& what) {
  if (!captures_here() || captured(s) || capture->mode == "relaxed") return;
  capture_error(
      s % kPerCard ? 905 : 906,
      c10::str(what, " on stream ", s, ", which has not joined the capture of stream ", capture->origin));
}

void forget_in_capture(Block* b) {
  if (capture) capture->before.erase(b);
}
bool under_capture() { return capture != nullptr; }

int pool_for(int s, size_t bytes) {
  if (captured(s)) return capture->pool;
  require_joined(s, c10::str("an allocation of ", bytes, " bytes outside of the graph's pool"));
  return 0;
}

// What a captured kernel is about to change is put back at the end.
void save_for_capture(const at::Tensor& t) {
  if (!capture || dry || !t.numel()) return;
  Block* b = block_at(t.const_data_ptr());
  if (!b || b->pool == capture->pool) return;
  char* at = static_cast<char*>(const_cast<void*>(t.const_data_ptr()));
  size_t n = at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.dtype().itemsize());
  if (capture->saved_places.insert({at, n}).second)
    capture->saved.push_back({at, std::vector<char>(at, at + n)});
}

Ref ref_of(const at::Tensor& t, bool write) {
  char* at = static_cast<char*>(const_cast<void*>(t.const_data_ptr()));
  size_t n = at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.dtype().itemsize());
  if (t.is_cuda()) {
    Block* b = block_at(at);
    return {at, n, write, true, b ? b->born : 0, b ? b->pool : 0};
  }
  Pinned* p = pinned_at(at);
  return {at, n, write, false, p ? p->born : 0, 0};
}

void add_node(int s, Node node) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  capture->last[s] = now_[s];
  capture->graph->nodes.push_back(std::move(node));
}

}  // namespace
