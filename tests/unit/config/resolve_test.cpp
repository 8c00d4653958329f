#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "baton/config/launch.hpp"

namespace baton::config {
namespace {

using ::testing::HasSubstr;

LaunchRequest parsed(const std::string& body) {
    auto r = parse_launch(body);
    EXPECT_TRUE(r) << r.error().message;
    return r ? *r : LaunchRequest{};
}

LaunchRequest pd(const std::string& ip, const std::string& device_rest = "") {
    const std::string device = R"({"worker_ip":")" + ip + "\"" + device_rest + "}";
    return parsed(R"({"model_name":"m","model_uid":"u","model_engine":"vLLM","replica_config":[{"role":"prefill","devices":[)" +
                  device + R"(]},{"role":"decode","devices":[)" + device + "]}]}");
}

const std::vector<WorkerView> kCpu = {{"10.0.0.1:9000", {}, false}};
const std::vector<WorkerView> kGpus = {{"10.0.0.1:9000", {0, 1}, false}, {"10.0.0.2:9000", {}, false}};

struct Outcome {
    Expected<LaunchRequest> request;
    std::vector<std::string> warnings;
};
Outcome resolve(LaunchRequest r, const std::vector<WorkerView>& workers, bool local_only = false) {
    Outcome out{fail(ErrorCode::kInternal, "not run"), {}};
    out.request = resolve_launch(std::move(r), workers, local_only, out.warnings);
    return out;
}

TEST(ResolveLaunch, FillsUidsAndWorkers) {
    const auto out = resolve(pd("10.0.0.1:9000", R"(,"n_gpu":0)"), kCpu);
    ASSERT_TRUE(out.request) << out.request.error().message;
    EXPECT_EQ(out.request->placements[0].replica_uid, "u-0");
    EXPECT_EQ(out.request->placements[1].replica_uid, "u-1");
    EXPECT_EQ(out.request->placements[0].worker_ip, "10.0.0.1:9000");
}

TEST(ResolveLaunch, Row18UnknownWorker) {
    const auto out = resolve(pd("9.9.9.9:1"), kGpus);
    ASSERT_FALSE(out.request);
    EXPECT_EQ(out.request.error().message,
              "replica_config[0].worker_ip '9.9.9.9:1' is not in the cluster. Registered workers: ['10.0.0.1:9000', "
              "'10.0.0.2:9000'].");
}

TEST(ResolveLaunch, LocalServeOnlyWarns) {
    const auto out = resolve(pd("9.9.9.9:1", R"(,"n_gpu":0)"), kCpu, true);
    ASSERT_TRUE(out.request) << out.request.error().message;
    EXPECT_EQ(out.request->placements[0].worker_ip, "10.0.0.1:9000");
    EXPECT_EQ(out.warnings.size(), 2u);
    EXPECT_TRUE(resolve(pd(""), kCpu, true).warnings.empty()) << "no address, nothing to warn of";
}

TEST(ResolveLaunch, Row19InvisibleGpu) {
    const auto out = resolve(pd("10.0.0.1:9000", R"(,"gpu_idx":[5])"), kGpus);
    ASSERT_FALSE(out.request);
    EXPECT_EQ(out.request.error().message,
              "replica_config[0].gpu_idx [5] is not visible on worker 10.0.0.1:9000; visible GPU indexes: [0, 1]");
    EXPECT_THAT(resolve(pd("10.0.0.1:9000", R"(,"gpu_idx":[0])"), kCpu).request.error().message,
                HasSubstr("visible GPU indexes: []"));
}

TEST(ResolveLaunch, Row22NoWorker) {
    const auto out = resolve(pd("10.0.0.1:9000"), {});
    ASSERT_FALSE(out.request);
    EXPECT_EQ(out.request.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(out.request.error().message, HasSubstr("No available worker found"));
}

TEST(ResolveLaunch, Row22bGpuCount) {
    constexpr const char* kMessage =
        "The parameter `n_gpu` must be greater than 0 and not greater than the number of GPUs: 0 on the machine.";
    EXPECT_EQ(resolve(pd("10.0.0.1:9000", R"(,"n_gpu":1)"), kCpu).request.error().message, kMessage);
    EXPECT_EQ(resolve(parsed(R"({"model_name":"m","model_engine":"baton","n_gpu":0})"), kCpu).request.error().message, kMessage);
    EXPECT_TRUE(resolve(parsed(R"({"model_name":"m","model_engine":"baton","n_gpu":null})"), kCpu).request) << "null is the CPU";
}

TEST(ResolveLaunch, WhatIsMissingForAGpuIsSaid) {
    std::vector<WorkerView> workers = kCpu;
    for (WorkerView& w : workers) w.gpu_error = "no driver is loaded";
    EXPECT_EQ(resolve(pd("10.0.0.1:9000", R"(,"n_gpu":1)"), workers).request.error().message,
              "The parameter `n_gpu` must be greater than 0 and not greater than the number of GPUs: 0 on the machine. (no driver is loaded)");
    EXPECT_THAT(resolve(pd("10.0.0.1:9000", R"(,"gpu_idx":[0])"), workers).request.error().message,
                HasSubstr("visible GPU indexes: [] (no driver is loaded)"));
    EXPECT_TRUE(resolve(pd("10.0.0.1:9000"), workers).request) << "auto takes the CPU";
}

TEST(ResolveLaunch, TheLeastUsedGpuIsTaken) {
    std::vector<WorkerView> workers = kGpus;
    workers[0].on_gpu = {{0, 2}, {1, 1}};
    const auto body = [](int n) { return parsed(R"({"model_name":"m","model_engine":"baton","worker_ip":"10.0.0.1:9000","replica":)" + std::to_string(n) + "}"); };
    EXPECT_EQ(resolve(body(1), workers).request->placements[0].gpu_idx, (std::vector<int64_t>{1}));
    const auto three = resolve(body(3), workers);
    std::vector<int64_t> taken;
    for (const auto& p : three.request->placements) taken.push_back(p.gpu_idx.at(0));
    EXPECT_EQ(taken, (std::vector<int64_t>{1, 0, 1}));
}

TEST(ResolveLaunch, KeywordsThatAGpuCannotServe) {
    const auto message = [](const std::string& keys, const std::vector<WorkerView>& workers) {
        auto out = resolve(parsed(R"({"model_name":"m","model_engine":"baton","worker_ip":"10.0.0.1:9000")" + keys + "}"), workers);
        return out.request ? std::string() : out.request.error().message;
    };
    for (const auto& [keys, part] : {std::pair(R"(,"dtype":"float32")", "dtype float32"), std::pair(R"(,"kv_dtype":"f32")", "kv_dtype f32"),
                                     std::pair(R"(,"block_size":8)", "16, 32 or 64 on a GPU, got 8")}) {
        EXPECT_THAT(message(keys, kGpus), HasSubstr(part));
        EXPECT_EQ(message(keys, kCpu), "");
        EXPECT_EQ(message(std::string(R"(,"n_gpu":null)") + keys, kGpus), "");
    }
    EXPECT_EQ(message(R"(,"dtype":"half","block_size":32,"gpu_memory_utilization":0.5,"deterministic":true)", kGpus), "");
}

TEST(ResolveLaunch, PrefillAndDecodeRunOnOneKindOfDevice) {
    const auto mixed = parsed(R"({"model_name":"m","model_engine":"baton","model_uid":"m","replica_config":[
        {"role":"prefill","devices":[{"worker_ip":"10.0.0.1:9000"}]},{"role":"decode","devices":[{"worker_ip":"10.0.0.1:9000","n_gpu":0}]}]})");
    const auto out = resolve(mixed, kGpus);
    ASSERT_FALSE(out.request);
    EXPECT_THAT(out.request.error().message, HasSubstr("1 of 2 are on GPUs"));
}

TEST(ResolveLaunch, Row22bModelPath) {
    std::vector<WorkerView> local = kCpu;
    local[0].local = true;
    const auto body = R"({"model_name":"m","model_engine":"baton","model_path":"/no/such/file"})";
    EXPECT_EQ(resolve(parsed(body), local).request.error().message,
              "Invalid input. `model_path`: /no/such/file File or directory does not exist.");
    EXPECT_TRUE(resolve(parsed(body), kCpu).request) << "another host's file cannot be seen from here";
}

TEST(ResolveLaunch, AutoTakesOneGpuWhereThereIsOneElseTheCpu) {
    const auto gpu = resolve(pd("10.0.0.1:9000"), kGpus);
    ASSERT_TRUE(gpu.request);
    EXPECT_EQ(gpu.request->placements[0].gpu_idx, (std::vector<int64_t>{0}));
    EXPECT_EQ(gpu.request->placements[1].gpu_idx, (std::vector<int64_t>{1}));
    const auto cpu = resolve(pd("10.0.0.2:9000"), kGpus);
    ASSERT_TRUE(cpu.request);
    EXPECT_EQ(cpu.request->placements[0].n_gpu, 0);
    EXPECT_TRUE(cpu.request->placements[0].gpu_idx.empty());
}

TEST(ResolveLaunch, OrdinaryReplicasSpreadOverWorkers) {
    const auto out = resolve(parsed(R"({"model_name":"m","model_engine":"baton","replica":4})"), kGpus);
    ASSERT_TRUE(out.request);
    size_t first = 0;
    for (const auto& p : out.request->placements) first += p.worker_ip == "10.0.0.1:9000" ? 1 : 0;
    EXPECT_EQ(first, 2u);
    const auto bare = resolve(parsed(R"({"model_name":"m","model_engine":"baton","worker_ip":"10.0.0.2"})"), kGpus);
    ASSERT_TRUE(bare.request) << "a bare host means its workers";
    EXPECT_EQ(bare.request->placements[0].worker_ip, "10.0.0.2:9000");
    EXPECT_THAT(resolve(parsed(R"({"model_name":"m","model_engine":"baton","worker_ip":"10.0.0.7"})"), kGpus).request.error().message,
                HasSubstr("'10.0.0.7' is not in the cluster"));
}

TEST(ResolveLaunch, DefaultUidsMustNotMeetExplicitOnes) {
    auto r = pd("10.0.0.1:9000", R"(,"n_gpu":0)");
    r.model_uid = "";  // chosen by the supervisor between the two steps
    r.placements[0].replica_uid = "later-1";
    r.model_uid = "later";
    const auto out = resolve(r, kCpu);
    ASSERT_FALSE(out.request);
    EXPECT_EQ(out.request.error().message, "Duplicate replica_uid 'later-1' in replica_config.");
}

TEST(ResolveLaunch, Rows20To22WhereGpusAreNotShared) {
    std::vector<WorkerView> workers = {{"10.0.0.1:9000", {0, 1}, false}};
    workers[0].share_gpus = false;
    auto both = resolve(pd("10.0.0.1:9000", R"(,"gpu_idx":[1])"), workers);
    ASSERT_FALSE(both.request);
    EXPECT_EQ(both.request.error().message,
              "replica_config GPU conflict on worker 10.0.0.1:9000: GPU indexes [1] requested by more than one replica, and this worker "
              "disallows sharing a GPU.");
    workers[0].on_gpu = {{1, 1}};
    auto taken = resolve(pd("10.0.0.1:9000", R"(,"gpu_idx":[1])"), workers);
    ASSERT_FALSE(taken.request);
    EXPECT_EQ(taken.request.error().message,
              "replica_config GPU conflict on worker 10.0.0.1:9000: GPU indexes [1] are already occupied, and this worker disallows "
              "sharing a GPU.");
    auto no_slot = resolve(pd("10.0.0.1:9000"), workers);
    ASSERT_FALSE(no_slot.request);
    EXPECT_EQ(no_slot.request.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(no_slot.request.error().message, "No available slot found for the model");
    workers[0].on_gpu.clear();
    const auto apart = resolve(pd("10.0.0.1:9000"), workers);
    ASSERT_TRUE(apart.request) << apart.request.error().message;
    EXPECT_NE(apart.request->placements[0].gpu_idx, apart.request->placements[1].gpu_idx);
    workers[0].share_gpus = true;
    EXPECT_TRUE(resolve(pd("10.0.0.1:9000", R"(,"gpu_idx":[1])"), workers).request);
}

}  // namespace
}  // namespace baton::config
