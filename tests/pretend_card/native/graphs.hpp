// CUDA graphs: what was captured, run again on the same places.
#pragma once
#include "guard.hpp"

namespace {

// What the driver keeps for a node of an instantiated graph. Assumed: 67 graphs of a model of 36 layers, some
// 450 nodes each, took 0.22 to 0.45 GiB in servers' logs, outputs included.
size_t node_bytes = 12 << 10;

int new_pool() {
  std::lock_guard<std::recursive_mutex> lock(mu);
  return ++pools_made;
}

void leave_pool(int pool) {
  auto it = graphs_of_pool.find(pool);
  if (it != graphs_of_pool.end() && --it->second == 0) graphs_of_pool.erase(it);
}

void begin_capture(Graph& graph, int pool, const std::string& mode) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  require_alive("cudaStreamBeginCapture");
  TORCH_CHECK(!graph.captured,
              "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a "
              "new instance.");
  TORCH_CHECK(!capture, "only one capture may be underway at a time in the process");
  const int s = here(current_device);
  TORCH_CHECK(s % kPerCard,
              "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to "
              "replay them on the default stream.)");
  graph.device = current_device;
  graph.pool = pool ? pool : new_pool();
  ++graphs_of_pool[graph.pool];
  capture = std::make_unique<Capture>(Capture{++captures,
                                              &graph,
                                              current_device,
                                              s,
                                              graph.pool,
                                              std::this_thread::get_id(),
                                              mode,
                                              "",
                                              {s},
                                              {},
                                              {},
                                              {},
                                              {}});
}

void put_back(Capture& done) {
  for (auto it = done.saved.rbegin(); it != done.saved.rend(); ++it)
    memcpy(it->at, it->bytes.data(), it->bytes.size());
  for (auto& [b, access] : done.before) b->access = access;
  if (!poison) return;
  for (auto& node : done.graph->nodes)
    for (auto& r : node.refs)
      if (r.write && r.on_card && r.pool == done.pool) memset(r.at, 0xFF, r.bytes);
}

std::string unjoined(const Capture& done) {
  for (auto& [s, when] : done.last)
    if (s != done.origin && knows[done.origin].t[s] < when)
      return c10::str("stream ", s, " is not waited for");
  return "";
}

void end_capture(Graph& graph) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  TORCH_CHECK(capture && capture->graph == &graph,
              "CUDA error: the operation is not permitted: no capture of this graph");
  auto done = std::move(capture);
  put_back(*done);
  std::string wrong = done->broken;
  int code = wrong.empty() ? 0 : 901;
  if (!code && here(current_device) != done->origin) code = 903, wrong = "ended on another stream";
  if (!code && !(wrong = unjoined(*done)).empty()) code = 904;
  if (code) {
    graph.nodes.clear();
    leave_pool(graph.pool);
    capture_error(code, wrong);
  }
  graph.captured = true;
  graph.own_bytes = graph.nodes.size() * node_bytes;
  card[graph.device].graphs += graph.own_bytes;
  ++counts["graphs captured"];
}

void reset_graph(Graph& graph) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  if (graph.captured) {
    leave_pool(graph.pool);
    card[graph.device].graphs -= graph.own_bytes;
  }
  graph.captured = false;
  graph.nodes.clear();
}

Graph::~Graph() { reset_graph(*this); }

std::string gone(const Graph& graph, const Ref& r) {
  if (r.pool && r.pool == graph.pool) return "";
  if (!r.on_card) {
    Pinned* p = pinned_at(r.at);
    return p && p->born == r.born ? "" : "pinned memory that was given back";
  }
  Block* b = block_at(r.at);
  return b && b->born == r.born ? "" : "memory of the card that was given back";
}

void require_places(const Graph& graph) {
  for (auto& node : graph.nodes)
    for (auto& r : node.refs) {
      auto what = gone(graph, r);
      TORCH_CHECK(what.empty(), "pretend card: the graph's ", node.name, r.write ? " writes to " : " reads ",
                  what, " since it was captured (", r.bytes,
                  " bytes); on a card it would go on without a word");
    }
}

void touch_places(const Node& node, int s) {
  for (auto& r : node.refs)
    if (r.on_card) touch(block_at(r.at), s, r.write, c10::str("graph replay: ", node.name));
}

void touch_pool(const Graph& graph, int s) {
  std::string wrong;
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    wrong = check_write(pool_access[graph.pool], s, "graph replay (its pool)");
  }
  if (!wrong.empty()) race(wrong, true);
}

void account_replay(const Graph& graph, int s) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  ++counts["graph replays"];
  counts["graph nodes"] += graph.nodes.size();
  host_time += costs.replay - costs.launch;
  double read = 0, written = 0;
  for (auto& node : graph.nodes) {
    auto [in, out] = node.measure ? node.measure() : std::pair(node.read, node.written);
    read += in;
    written += out;
    ++counts["in graphs " + node.name];
  }
  count_bytes(read, written);
  occupy(s, static_cast<double>(graph.nodes.size()) * costs.node + (read + written) / costs.memory);
}

void replay(Graph& graph) {
  TORCH_CHECK(graph.captured, "Called CUDAGraph::replay without a preceding successful capture.");
  DeviceHere h(graph.device);
  if (captured(here(graph.device))) capture_error(900, "a replay inside of a capture");
  require_places(graph);
  const int s = launch(graph.device, "graph replay");
  touch_pool(graph, s);
  account_replay(graph, s);
  for (auto& node : graph.nodes) {
    touch_places(node, s);
    if (node.again) node.again(s);
  }
  ++graph.replays;
  tell_late();
}

}  // namespace
