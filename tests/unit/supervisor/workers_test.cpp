#include "supervisor/workers.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace baton::supervisor {
namespace {

/// A worker's link, whose other end is the test.
class FakeLink final : public net::Connection {
  public:
    explicit FakeLink(std::string remote) : remote_(std::move(remote)) {}
    void start(Handlers handlers) override { handlers_ = std::move(handlers); }
    void send(const wire::Message&, std::vector<std::byte>, std::vector<int>) override {}
    void close() override {}
    [[nodiscard]] const wire::Hello& peer() const override { return hello_; }
    [[nodiscard]] std::string remote() const override { return remote_; }
    [[nodiscard]] std::string local_ip() const override { return "10.0.0.9"; }
    [[nodiscard]] size_t queued_bytes() const override { return 0; }

    void says(const wire::Message& message) { handlers_.on_message({message, {}, {}}); }
    void breaks() { handlers_.on_close({ErrorCode::kPeerLost, "closed", ""}); }

  private:
    std::string remote_;
    wire::Hello hello_;
    Handlers handlers_;
};

struct Rig {
    std::vector<std::string> registered, lost;
    Workers workers{{[this](const std::string& a) { registered.push_back(a); }, [this](const std::string& a) { lost.push_back(a); }, [](const wire::SpawnResult&) {},
                     [](const wire::ReplicaExited&) {}, [](const std::string&, const wire::WorkerStats&) {}, [](const std::string&, const wire::Message&) {}}};

    std::shared_ptr<FakeLink> join(const std::string& address, const std::string& host_id, const std::string& remote = "10.0.0.2:1") {
        auto link = std::make_shared<FakeLink>(remote);
        workers.connected(link);
        wire::WorkerReady ready;
        ready.address = address;
        ready.host_id = host_id;
        link->says(ready);
        return link;
    }
};

using Map = std::map<std::string, std::string>;

TEST(Workers, KnowAHostAgainByItsIdOrItsIp) {
    EXPECT_TRUE(of_one_host("10.0.0.1:1", "boot-a", "10.0.0.2:2", "boot-a"));    // it has got another ip
    EXPECT_TRUE(of_one_host("10.0.0.1:1", "boot-a", "10.0.0.1:2", "boot-b"));    // it was booted
    EXPECT_TRUE(of_one_host("127.0.0.1:1", "boot-a", "127.0.0.1:2", "boot-a"));
    EXPECT_TRUE(of_one_host("[fd00::1]:1", "", "[fd00::1]:2", "boot-b"));
    EXPECT_FALSE(of_one_host("10.0.0.1:1", "boot-a", "10.0.0.2:1", "boot-b"));
    EXPECT_FALSE(of_one_host("10.0.0.1:1", "", "10.0.0.2:1", ""));
    EXPECT_FALSE(of_one_host("127.0.0.1:1", "boot-a", "127.0.0.1:2", "boot-b"));  // every host has that ip
    EXPECT_FALSE(of_one_host("[::1]:1", "", "[::1]:2", "boot-b"));
}

TEST(Workers, ReplaceOneOfTheSameHostThatIsGone) {
    Rig rig;
    const auto first = rig.join("10.0.0.2:4000", "a");
    rig.join("10.0.0.3:4000", "b");
    EXPECT_FALSE(rig.workers.replaces("10.0.0.2:4000", "10.0.0.3:4000"));  // it is there
    first->breaks();
    EXPECT_EQ(rig.lost, std::vector<std::string>{"10.0.0.2:4000"});
    EXPECT_EQ(rig.workers.host_id_of("10.0.0.2:4000"), "a");
    EXPECT_FALSE(rig.workers.replaces("10.0.0.2:4000", "10.0.0.3:4000"));
    rig.join("10.0.0.2:4001", "a");
    EXPECT_TRUE(rig.workers.replaces("10.0.0.2:4000", "10.0.0.2:4001"));
    EXPECT_FALSE(rig.workers.replaces("10.0.0.3:4000", "10.0.0.2:4001"));
}

TEST(Workers, OfAnEarlierSupervisorAreKnownByWhatItRecorded) {
    Rig rig;
    rig.workers.remember("127.0.0.1:4000", "a");
    rig.workers.remember("127.0.0.1:5000", "b");
    rig.join("127.0.0.1:6000", "b");
    EXPECT_FALSE(rig.workers.replaces("127.0.0.1:4000", "127.0.0.1:6000"));
    EXPECT_TRUE(rig.workers.replaces("127.0.0.1:5000", "127.0.0.1:6000"));
    EXPECT_EQ(rig.workers.now_at({"127.0.0.1:4000", "127.0.0.1:5000"}, true), (Map{{"127.0.0.1:5000", "127.0.0.1:6000"}}));
}

/// A host that goes down without a word comes back before its silence is noticed: then nobody registers after the loss.
TEST(Workers, TakeThePlaceOfOneWhoseLossIsNoticedLater) {
    Rig rig;
    const auto first = rig.join("10.0.0.2:4000", "a");
    const auto other = rig.join("10.0.0.2:5000", "a");  // a second worker of the host, which runs beside the first
    first->says(wire::WorkerStats{});
    for (const TimeMs then = steady_now(); steady_now() == then;) std::this_thread::yield();
    rig.join("10.0.0.2:4001", "b");
    EXPECT_EQ(rig.registered, (std::vector<std::string>{"10.0.0.2:4000", "10.0.0.2:5000", "10.0.0.2:4001"}));
    first->breaks();
    EXPECT_EQ(rig.lost, std::vector<std::string>{"10.0.0.2:4000"});
    EXPECT_EQ(rig.registered, (std::vector<std::string>{"10.0.0.2:4000", "10.0.0.2:5000", "10.0.0.2:4001", "10.0.0.2:4001"}));
}

TEST(Workers, StandForOneAddressEach) {
    Rig rig;
    for (const char* address : {"10.0.0.2:1", "10.0.0.2:2", "10.0.0.2:3"}) rig.workers.remember(address, "a");
    rig.join("10.0.0.2:3", "a");
    EXPECT_EQ(rig.workers.now_at({"10.0.0.2:1", "10.0.0.2:3"}, false), (Map{{"10.0.0.2:3", "10.0.0.2:3"}}));
    EXPECT_EQ(rig.workers.now_at({"10.0.0.2:1", "10.0.0.2:3"}, true), (Map{{"10.0.0.2:1", "10.0.0.2:3"}, {"10.0.0.2:3", "10.0.0.2:3"}}));
    rig.join("10.0.0.2:7", "a");
    EXPECT_EQ(rig.workers.now_at({"10.0.0.2:1", "10.0.0.2:3"}, true), (Map{{"10.0.0.2:1", "10.0.0.2:7"}, {"10.0.0.2:3", "10.0.0.2:3"}}));
    EXPECT_EQ(rig.workers.now_at({"10.0.0.2:1", "10.0.0.2:2", "10.0.0.5:1"}, false), (Map{{"10.0.0.2:1", "10.0.0.2:3"}, {"10.0.0.2:2", "10.0.0.2:7"}}));
}

TEST(Workers, OfTheSupervisorItselfStandForEveryAddressOfTheirs) {
    Rig rig;
    rig.join("127.0.0.1:7", "now", "unix");
    EXPECT_EQ(rig.workers.now_at({"127.0.0.1:1", "127.0.0.1:2", "10.0.0.2:1"}, false), (Map{{"127.0.0.1:1", "127.0.0.1:7"}, {"127.0.0.1:2", "127.0.0.1:7"}}));
    EXPECT_FALSE(rig.workers.replaces("10.0.0.2:1", "127.0.0.1:7"));
}

TEST(Workers, ForgetHostsBeyondABound) {
    Rig rig;
    for (int i = 0; i < 1'000; ++i) rig.workers.remember("10.0.0.2:" + std::to_string(i), "a");
    size_t known = 0;
    for (int i = 0; i < 1'000; ++i) known += rig.workers.host_id_of("10.0.0.2:" + std::to_string(i)).empty() ? 0 : 1;
    EXPECT_EQ(known, 256u);
}

}  // namespace
}  // namespace baton::supervisor
