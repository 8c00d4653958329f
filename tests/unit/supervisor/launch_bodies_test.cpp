#include "supervisor/launch_bodies.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace baton::supervisor {
namespace {

using nlohmann::json;
using Names = std::set<std::string>;

const char* const kPd = R"({"model_name": "x", "replica": 2, "replica_config": [
    {"role": "prefill", "devices": [{"worker_ip": "10.0.0.1:4000", "n_gpu": 0}]},
    {"role": "decode", "devices": [{"worker_ip": " 10.0.0.2:5000 ", "n_gpu": 0}]}]})";

/// The same list under each name and in each form that a launch takes.
std::vector<std::string> forms() {
    const json body = json::parse(kPd);
    json text = body, hyphen = body, both = body;
    text["replica_config"] = body["replica_config"].dump();
    hyphen.erase("replica_config");
    hyphen["replica-config"] = body["replica_config"];
    both["replica-config"] = nullptr;
    return {kPd, text.dump(), hyphen.dump(), both.dump()};
}

TEST(LaunchBodies, NameTheWorkersOfAReplicaConfigInEachForm) {
    for (const std::string& body : forms()) EXPECT_EQ(workers_named(body), (Names{"10.0.0.1:4000", "10.0.0.2:5000"})) << body;
}

TEST(LaunchBodies, NameTheWorkersOfAnOrdinaryLaunch) {
    EXPECT_EQ(workers_named(R"({"worker_ip": "10.0.0.1:4000, 10.0.0.2:1 ,10.0.0.3"})"), (Names{"10.0.0.1:4000", "10.0.0.2:1"}));
    EXPECT_EQ(workers_named(R"({"worker_ip": ["10.0.0.1:4000", 3]})"), (Names{"10.0.0.1:4000"}));
    EXPECT_EQ(workers_named(R"({"worker_ip": "[fd00::1]:80"})"), (Names{"[fd00::1]:80"}));
    for (const char* none : {"", "[]", "{", "{}", R"({"worker_ip": null})", R"({"worker_ip": "10.0.0.1"})", R"({"worker_ip": "10.0.0.1:"})", R"({"worker_ip": ""})",
                             R"({"replica_config": "no json"})", R"({"replica_config": [1, {}, {"devices": 5}, {"devices": [{}]}]})"})
        EXPECT_EQ(workers_named(none), Names{}) << none;
}

TEST(LaunchBodies, AreReaddressedInEachForm) {
    const std::map<std::string, std::string> now = {{"10.0.0.2:5000", "10.0.0.2:5001"}, {"10.0.0.9:1", "10.0.0.8:1"}};
    for (const std::string& body : forms()) {
        const std::string again = readdressed(body, now);
        EXPECT_EQ(workers_named(again), (Names{"10.0.0.1:4000", "10.0.0.2:5001"})) << body;
        json want = json::parse(kPd);
        want["replica_config"][1]["devices"][0]["worker_ip"] = "10.0.0.2:5001";
        json got = json::parse(again);
        got.erase("replica-config");
        EXPECT_EQ(got, want) << body;
    }
    EXPECT_EQ(json::parse(readdressed(R"({"worker_ip": "10.0.0.1:4000,10.0.0.2:5000", "n": 1})", now)), json::parse(R"({"worker_ip": "10.0.0.1:4000,10.0.0.2:5001", "n": 1})"));
}

TEST(LaunchBodies, AreLeftAloneWhereNoWorkerHasMoved) {
    for (const std::string& body : {std::string(kPd), std::string(R"({"worker_ip":  "10.0.0.1" })"), std::string("no json"), std::string("[1]")}) {
        EXPECT_EQ(readdressed(body, {}), body);
        EXPECT_EQ(readdressed(body, {{"10.0.0.1:4000", "10.0.0.1:4000"}, {"other:1", "other:2"}}), body);
    }
}

TEST(LaunchBodies, FollowReplicasThatComeAndGo) {
    config::ReplicaPlacement added;
    added.replica_uid = "m-2";
    added.worker_ip = "10.0.0.3:1";
    added.gpu_idx = {1};
    const json more = json::parse(with_replica(kPd, 3, added));
    EXPECT_EQ(more["replica"], 3);
    EXPECT_EQ(more["replica_config"][2], json::parse(R"({"replica_uid": "m-2", "devices": [{"worker_ip": "10.0.0.3:1", "gpu_idx": [1]}]})"));
    const json less = json::parse(without_replica(kPd, 1, 0));
    EXPECT_EQ(less["replica"], 1);
    EXPECT_EQ(less["replica_config"].size(), 1u);
    EXPECT_EQ(less["replica_config"][0]["role"], "decode");
    EXPECT_EQ(json::parse(with_replica(R"({"gpu_idx": [0, 1], "replica": 2})", 3, added)), json::parse(R"({"replica": 3})"));
}

}  // namespace
}  // namespace baton::supervisor
