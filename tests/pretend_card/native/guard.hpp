// Devices, streams and events as torch's device guard and CUDA hooks ask for them.
#pragma once
#include "copies.hpp"

namespace {

struct Event {
  Vec vec;
  uint64_t capture = 0;  // recorded in it
  double when = 0;       // on the pretended clock
};

// Waits that happen at once on CUDA are refused while a graph is captured, with or without an event of it.
void require_outside(const Event* e, const char* what) {
  if (e && e->capture) capture_error(907, what);
  refuse_in_capture(what);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device d) const override {
    c10::Device before(c10::kCUDA, current_device);
    setDevice(d);
    return before;
  }
  c10::Device getDevice() const override {
    return {c10::kCUDA, static_cast<c10::DeviceIndex>(current_device)};
  }
  void setDevice(c10::Device d) const override {
    if (d.index() >= 0) current_device = d.index();
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0) current_device = d.index();
  }
  c10::Device of(c10::Device d) const {
    return {c10::kCUDA, static_cast<c10::DeviceIndex>(d.index() < 0 ? current_device : d.index())};
  }
  c10::Stream getStream(c10::Device d) const override {
    d = of(d);
    return c10::Stream(c10::Stream::UNSAFE, d, current_stream[d.index()]);
  }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::UNSAFE, of(d), 0);
  }
  c10::Stream getNewStream(c10::Device d, int) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    d = of(d);
    int id = 1 + made[d.index()]++ % (kPerCard - 1);
    return c10::Stream(c10::Stream::UNSAFE, d, id);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto before = getStream(s.device());
    current_stream[s.device_index()] = static_cast<int>(s.id());
    return before;
  }
  void destroyEvent(void* e, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(e);
  }
  void record(void** e, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    require_alive("event");
    if (!*e) *e = new Event();
    int i = stream_index(s.device_index(), s.id());
    auto* event = static_cast<Event*>(*e);
    event->vec = knows[i];
    event->capture = captured(i) ? ::capture->id : 0;
    event->when = std::max(busy_until[i], host_time);
  }
  // A stream that waits for an event of a capture joins it; a captured stream waits for nothing else.
  void block(void* e, const c10::Stream& s) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    if (!e) return;
    auto* event = static_cast<Event*>(e);
    int i = stream_index(s.device_index(), s.id());
    if (event->capture && (!::capture || ::capture->id != event->capture))
      capture_error(907, "a wait for an event of a capture that is over");
    if (!event->capture && captured(i))
      capture_error(905, "a captured stream waits for an event from before");
    if (event->capture) ::capture->streams.insert(i);
    knows[i].merge(event->vec);
    busy_until[i] = std::max(busy_until[i], event->when);
  }
  bool queryEvent(void* e) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    auto* event = static_cast<Event*>(e);
    require_outside(event, "cudaEventQuery");
    if (!event) return true;
    host_time += 1;
    if (clock_runs && host_time < event->when) return false;
    host_knows(event->vec);
    return true;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(cards); }
  bool queryStream(const c10::Stream& s) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    int i = stream_index(s.device_index(), s.id());
    refuse_in_capture("cudaStreamQuery", i);
    host_time += 1;
    if (clock_runs && host_time < busy_until[i]) return false;
    host_waits_for(i);
    return true;
  }
  void synchronizeStream(const c10::Stream& s) const override {
    bury();
    {
      std::lock_guard<std::recursive_mutex> lock(mu);
      int i = stream_index(s.device_index(), s.id());
      refuse_in_capture("cudaStreamSynchronize", i);
      require_alive("cudaStreamSynchronize");
      host_waits_for(i);
    }
    count_wait("stream");
  }
  void synchronizeEvent(void* e) const override {
    bury();
    bool stands;
    {
      std::lock_guard<std::recursive_mutex> lock(mu);
      auto* event = static_cast<Event*>(e);
      require_outside(event, "cudaEventSynchronize");
      require_alive("cudaEventSynchronize");
      // Else it has happened already. What threads beside the program's own wait for keeps nobody.
      stands = event && host_time < event->when && std::this_thread::get_id() == main_thread;
      if (event) {
        host_time = std::max(host_time, event->when);
        host_knows(event->vec);
      }
    }
    count_wait("event", stands);
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override {
    bury();
    {
      std::lock_guard<std::recursive_mutex> lock(mu);
      refuse_in_capture("cudaDeviceSynchronize");
      require_alive("cudaDeviceSynchronize");
      int device = d < 0 ? current_device : d;
      for (int i = 0; i < kPerCard; ++i) host_waits_for(device * kPerCard + i);
    }
    count_wait("device");
  }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& s) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    if (auto* b = static_cast<Block*>(p.get_context()))
      b->recorded.insert(stream_index(s.device_index(), s.id()));
  }
  // Milliseconds of the pretended clock.
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    require_outside(static_cast<Event*>(from), "cudaEventElapsedTime");
    return (static_cast<Event*>(to)->when - static_cast<Event*>(from)->when) / 1000;
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

}  // namespace

namespace at {
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return cards > 0; }
  bool hasCUDA() const override { return cards > 0; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return cards; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(cards); }
  DeviceIndex current_device() const override { return static_cast<DeviceIndex>(::current_device); }
  DeviceIndex getCurrentDevice() const override { return static_cast<DeviceIndex>(::current_device); }
  void setCurrentDevice(DeviceIndex d) const override { ::current_device = d; }
  DeviceIndex exchangeDevice(DeviceIndex d) const override {
    auto before = static_cast<DeviceIndex>(::current_device);
    ::current_device = d;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex d) const override {
    return d < 0 ? current_device() : exchangeDevice(d);
  }
  bool isPinnedPtr(const void* p) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    return pinned_base(p) != nullptr;
  }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  Allocator* getCUDADeviceAllocator() const override { return &allocator; }
  Device getDeviceFromPtr(void*) const override { return Device(kCUDA, 0); }
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::globalContext().defaultGenerator(Device(kCPU));
  }
  void deviceSynchronize(DeviceIndex d) const override { Guard().synchronizeDevice(d); }
};
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
