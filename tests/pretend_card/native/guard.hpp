// Devices, streams and events as torch's device guard and CUDA hooks ask for them.
#pragma once
#include "operators.hpp"

namespace {

struct Event {
  Vec vec;
};

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
    static_cast<Event*>(*e)->vec = knows[i];
  }
  void block(void* e, const c10::Stream& s) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    if (e) knows[stream_index(s.device_index(), s.id())].merge(static_cast<Event*>(e)->vec);
  }
  bool queryEvent(void* e) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    if (e) host_knows(static_cast<Event*>(e)->vec);
    return true;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(cards); }
  bool queryStream(const c10::Stream& s) const override {
    host_waits_for(stream_index(s.device_index(), s.id()));
    return true;
  }
  void synchronizeStream(const c10::Stream& s) const override {
    bury();
    std::lock_guard<std::recursive_mutex> lock(mu);
    require_alive("cudaStreamSynchronize");
    host_waits_for(stream_index(s.device_index(), s.id()));
    ++counts["host waits"];
    ++counts["host waits: stream"];
  }
  void synchronizeEvent(void* e) const override {
    bury();
    std::lock_guard<std::recursive_mutex> lock(mu);
    require_alive("cudaEventSynchronize");
    if (e) host_knows(static_cast<Event*>(e)->vec);
    ++counts["host waits: event"];
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override {
    bury();
    std::lock_guard<std::recursive_mutex> lock(mu);
    require_alive("cudaDeviceSynchronize");
    int device = d < 0 ? current_device : d;
    for (int i = 0; i < kPerCard; ++i) host_waits_for(device * kPerCard + i);
    ++counts["host waits"];
    ++counts["host waits: device"];
  }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& s) const override {
    std::lock_guard<std::recursive_mutex> lock(mu);
    if (auto* b = static_cast<Block*>(p.get_context()))
      b->recorded.insert(stream_index(s.device_index(), s.id()));
  }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 1.0; }
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
