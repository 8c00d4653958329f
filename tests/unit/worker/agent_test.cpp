#include "worker/agent.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

namespace baton::worker {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr const char* kSecret = "the secret of this test";
constexpr int64_t kPatienceMs = 20'000;  // only tells "answers" from "hangs"

/// Waits until a process is gone, also one that is not ours to reap.
bool gone(pid_t pid) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!fd) return errno == ESRCH;
    pollfd p{fd.get(), POLLIN, 0};
    return ::poll(&p, 1, static_cast<int>(kPatienceMs)) == 1;
}

/// An agent and the supervisor's end of its link on one io_context and one thread.
class AgentTest : public ::testing::Test {
  protected:
    AgentTest() {
        char pattern[] = "/tmp/baton-worker-test-XXXXXX";
        dir_ = ::mkdtemp(pattern);
        options_.settings.supervisor_unix = dir_ + "/supervisor.sock";
        options_.settings.run_dir = dir_ + "/run";
        options_.settings.link_secret = kSecret;
        options_.settings.supervisor_grace_ms = kPatienceMs;
        options_.settings.snapshot_bytes = 1 << 20;
        options_.executable = "/bin/sh";
        options_.argv_prefix = {"sh"};
    }
    ~AgentTest() override {
        agent_.reset();
        std::error_code ignored;
        std::filesystem::remove_all(dir_, ignored);
    }

    void listen() {
        auto listener = net::Listener::listen(io_, {options_.settings.supervisor_unix, ""}, {"supervisor", "s", kSecret},
                                              [this](std::shared_ptr<net::Connection> c) {
                                                  link_ = c;
                                                  c->start({[this](net::Connection::Received r) { inbox_.push_back(r.message); },
                                                            [this](const Error&) { link_.reset(); }});
                                              });
        ASSERT_TRUE(listener) << listener.error().message;
        listener_ = std::move(*listener);
    }
    void start() {
        if (!listener_) listen();
        agent_ = std::make_unique<Agent>(io_, options_);
        const auto started = agent_->start();
        ASSERT_TRUE(started) << started.error().message;
    }
    void start_and_register() {
        start();
        ready_ = await<wire::WorkerReady>();
        ASSERT_TRUE(ready_);
    }

    bool run_until(const std::function<bool()>& done) {
        const TimeMs end = steady_now() + kPatienceMs;
        bool is = done();
        while (!is && steady_now() < end && !io_.stopped()) {
            io_.run_one_for(std::chrono::milliseconds(50));
            is = done();
        }
        return is;
    }
    /// The next message of a kind; others that came before it stay.
    template <class M>
    std::optional<M> await() {
        std::optional<M> found;
        run_until([&] {
            for (auto it = inbox_.begin(); it != inbox_.end(); ++it)
                if (auto* m = std::get_if<M>(&*it)) {
                    found = *m;
                    inbox_.erase(it);
                    return true;
                }
            return false;
        });
        return found;
    }
    wire::SpawnReplica shell(const std::string& script, uint64_t replica = 1, uint64_t epoch = 1, const std::string& uid = "m") {
        return {uid, {{replica}, {epoch}}, 1, {"-c", script}, {}};
    }
    uint32_t spawn(const std::string& script, uint64_t replica = 1, uint64_t epoch = 1, const std::string& uid = "m") {
        link_->send(shell(script, replica, epoch, uid));
        const auto result = await<wire::SpawnResult>();
        EXPECT_TRUE(result);
        if (!result) return 0;
        EXPECT_EQ(result->error, "");
        EXPECT_EQ(result->target, (wire::ReplicaTarget{{replica}, {epoch}}));
        return result->pid;
    }
    /// A replica that ignores SIGTERM, and does so by the time this returns.
    pid_t spawn_deaf(uint64_t replica) {
        const std::string path = dir_ + "/deaf";
        EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
        const UniqueFd gate(::open(path.c_str(), O_RDWR | O_CLOEXEC));
        const auto pid = static_cast<pid_t>(spawn("trap '' TERM; echo > " + path + "; while :; do sleep 1000; done", replica));
        char c = 0;
        EXPECT_EQ(::read(gate.get(), &c, 1), 1);
        return pid;
    }
    void stop(uint32_t grace_ms, uint64_t replica = 1, uint64_t epoch = 1, const std::string& uid = "m") {
        link_->send(wire::StopReplica{uid, {{replica}, {epoch}}, grace_ms});
    }

    std::string dir_;
    boost::asio::io_context io_;
    AgentOptions options_;
    std::unique_ptr<net::Listener> listener_;
    std::shared_ptr<net::Connection> link_;
    std::vector<wire::Message> inbox_;
    std::unique_ptr<Agent> agent_;
    std::optional<wire::WorkerReady> ready_;
};

TEST_F(AgentTest, RegistersWithTheAddressItIsKnownBy) {
    start_and_register();
    EXPECT_EQ(ready_->address, agent_->address());
    EXPECT_THAT(ready_->address, ::testing::StartsWith("127.0.0.1:"));
    EXPECT_EQ(link_->peer().kind, "worker");
    EXPECT_EQ(link_->peer().name, ready_->address);
    EXPECT_EQ(ready_->pid, static_cast<uint32_t>(::getpid()));
    EXPECT_GT(ready_->cpu_count, 0u);
    EXPECT_GT(ready_->memory_bytes, 0u);
    const auto stats = await<wire::WorkerStats>();
    ASSERT_TRUE(stats);
    EXPECT_GT(stats->memory_total, stats->memory_used);
}

TEST_F(AgentTest, TwoWorkersNeverShareAnAddress) {
    start_and_register();
    AgentOptions second = options_;
    second.settings.run_dir += "2";
    second.settings.worker_port = static_cast<uint16_t>(std::stoi(agent_->address().substr(agent_->address().rfind(':') + 1)));
    Agent other(io_, second);
    const auto started = other.start();
    ASSERT_FALSE(started);
    EXPECT_THAT(started.error().message, HasSubstr("cannot use 127.0.0.1:"));
}

TEST_F(AgentTest, SpawnedReplicaHasItsOwnGroupNoInputAndTheSecretInItsEnvironment) {
    start_and_register();
    const uint32_t pid = spawn("read x && echo input; echo \"secret=$BATON_LINK_SECRET extra=$EXTRA\"; ls /proc/self/fd | wc -l; exit 7");
    EXPECT_NE(pid, 0u);
    const auto exited = await<wire::ReplicaExited>();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->status, 7);
    EXPECT_THAT(exited->last_output, HasSubstr(std::string("secret=") + kSecret + " extra=\n"));
    EXPECT_THAT(exited->last_output, ::testing::Not(HasSubstr("input")));
    // ls has 0, 1, 2 and the folder itself: nothing of ours leaked.
    EXPECT_THAT(exited->last_output, EndsWith("4\n"));
    EXPECT_TRUE(gone(static_cast<pid_t>(pid)));
}

TEST_F(AgentTest, EnvironmentOfTheRequestIsSet) {
    start_and_register();
    auto ask = shell("echo \"extra=$EXTRA\"");
    ask.env = {{"EXTRA", "yes"}};
    link_->send(ask);
    ASSERT_TRUE(await<wire::SpawnResult>());
    const auto exited = await<wire::ReplicaExited>();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->last_output, "extra=yes\n");
}

TEST_F(AgentTest, StopEndsWithTerm) {
    start_and_register();
    const uint32_t pid = spawn("exec sleep 1000");
    EXPECT_EQ(::getpgid(static_cast<pid_t>(pid)), static_cast<pid_t>(pid));
    stop(10'000);
    const auto exited = await<wire::ReplicaExited>();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->status, -SIGTERM);
    EXPECT_EQ(agent_->running(), 0u);
}

TEST_F(AgentTest, StopKillsAfterTheGrace) {
    start_and_register();
    spawn_deaf(1);
    stop(50);
    const auto exited = await<wire::ReplicaExited>();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->status, -SIGKILL);
}

TEST_F(AgentTest, StopOfAnUnknownReplicaAnswersThatItIsGone) {
    start_and_register();
    stop(100, 9, 9);
    const auto exited = await<wire::ReplicaExited>();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->target, (wire::ReplicaTarget{{9}, {9}}));
}

TEST_F(AgentTest, NoisyReplicaNeverBlocksAndItsTailIsKept) {
    start_and_register();
    spawn("i=0; while [ $i -lt 3000 ]; do echo '"
          "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789'; "
          "i=$((i+1)); done 2>/dev/null >/dev/stdout; echo last words >&2; exit 3");
    const auto exited = await<wire::ReplicaExited>();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->status, 3);
    EXPECT_EQ(exited->last_output.size(), Child::kOutputTailBytes);
    EXPECT_THAT(exited->last_output, EndsWith("last words\n"));
}

TEST_F(AgentTest, WhatAReplicaLeavesBehindIsKilled) {
    start_and_register();
    spawn("sleep 1000 & echo $!; exit 0");
    const auto exited = await<wire::ReplicaExited>();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->status, 0);
    EXPECT_TRUE(gone(std::stoi(exited->last_output)));
}

TEST_F(AgentTest, ExecutableThatCannotRunIsReported) {
    options_.executable = dir_ + "/no-such-program";
    start_and_register();
    link_->send(shell("true"));
    const auto result = await<wire::SpawnResult>();
    ASSERT_TRUE(result);
    EXPECT_THAT(result->error, HasSubstr("No such file or directory"));
    EXPECT_EQ(agent_->running(), 0u);
}

TEST_F(AgentTest, StaleEpochIsRefusedAndANewerOneReplaces) {
    start_and_register();
    const uint32_t old_pid = spawn("exec sleep 1000", 1, 5);
    for (const uint64_t stale : {4u, 5u}) {
        link_->send(shell("true", 1, stale));
        const auto result = await<wire::SpawnResult>();
        ASSERT_TRUE(result);
        EXPECT_EQ(result->error, "stale epoch");
    }
    spawn("exec sleep 1000", 1, 6);
    const auto exited = await<wire::ReplicaExited>();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->target.epoch.value, 5u);
    EXPECT_TRUE(gone(static_cast<pid_t>(old_pid)));
    EXPECT_EQ(agent_->running(), 1u);
    // After the model was stopped for good its epochs start anew.
    stop(10'000, 1, 6);
    ASSERT_TRUE(await<wire::ReplicaExited>());
    spawn("exec sleep 1000", 1, 1);
}

TEST_F(AgentTest, ChildOfServeEndsItsReplicasWithTheLink) {
    options_.settings.child_of_supervisor = true;
    options_.orphan_grace_ms = 100;
    start_and_register();
    const auto soft = static_cast<pid_t>(spawn("exec sleep 1000", 1));
    const pid_t deaf = spawn_deaf(2);
    link_->close();
    EXPECT_TRUE(run_until([&] { return io_.stopped(); }) || io_.stopped());
    EXPECT_EQ(agent_->exit_code(), 1);
    EXPECT_TRUE(gone(soft));
    EXPECT_TRUE(gone(deaf));
}

TEST_F(AgentTest, SeparateWorkerKeepsReplicasAndAnnouncesThemAgain) {
    start_and_register();
    ASSERT_EQ(::mkfifo((dir_ + "/gate").c_str(), 0600), 0);
    const UniqueFd gate(::open((dir_ + "/gate").c_str(), O_RDWR | O_CLOEXEC));
    const uint32_t kept = spawn("exec sleep 1000", 1, 3);
    spawn("read x < " + dir_ + "/gate; exit 4", 2, 3);
    listener_.reset();
    link_->close();
    ASSERT_TRUE(run_until([&] { return link_ == nullptr; }));
    inbox_.clear();
    // The second replica ends while nobody is there to hear of it.
    ASSERT_EQ(::write(gate.get(), "x\n", 2), 2);
    ASSERT_TRUE(run_until([&] { return agent_->running() == 1; }));
    listen();
    const auto ready = await<wire::WorkerReady>();
    ASSERT_TRUE(ready);
    EXPECT_EQ(ready->address, agent_->address());
    const auto again = await<wire::SpawnResult>();
    ASSERT_TRUE(again);
    EXPECT_EQ(again->pid, kept);
    EXPECT_EQ(again->target, (wire::ReplicaTarget{{1}, {3}}));
    const auto exited = await<wire::ReplicaExited>();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->target.replica.value, 2u);
    EXPECT_EQ(exited->status, 4);
}

TEST_F(AgentTest, GivesUpAfterTheGrace) {
    options_.settings.supervisor_grace_ms = 150;
    start_and_register();
    const auto pid = static_cast<pid_t>(spawn("exec sleep 1000"));
    listener_.reset();
    link_->close();
    run_until([&] { return io_.stopped(); });
    EXPECT_TRUE(io_.stopped());
    EXPECT_EQ(agent_->exit_code(), 1);
    EXPECT_TRUE(gone(pid));
}

TEST_F(AgentTest, WrongSecretIsNotTriedTwice) {
    listen();
    options_.settings.link_secret = "another";
    start();
    run_until([&] { return io_.stopped(); });
    EXPECT_TRUE(io_.stopped());
    EXPECT_EQ(agent_->exit_code(), 1);
}

TEST_F(AgentTest, StopEndsEverythingAndReportsIt) {
    start_and_register();
    const auto pid = static_cast<pid_t>(spawn("exec sleep 1000"));
    agent_->stop(5'000, 0);
    run_until([&] { return io_.stopped(); });
    EXPECT_TRUE(io_.stopped());
    EXPECT_EQ(agent_->exit_code(), 0);
    EXPECT_TRUE(gone(pid));
}

/// kill -9 of the worker: the kernel ends its replicas.
TEST(Child, DiesWithItsParent) {
    int report[2];
    ASSERT_EQ(::pipe(report), 0);
    const pid_t middle = ::fork();
    ASSERT_GE(middle, 0);
    if (middle == 0) {
        boost::asio::io_context io;
        auto child = Child::spawn(io, {"/bin/sleep", {"sleep", "1000"}, {}}, [](ChildExit) {});
        const int pid = child ? (*child)->pid() : -1;
        [[maybe_unused]] const auto n = ::write(report[1], &pid, sizeof pid);
        ::raise(SIGKILL);
    }
    int pid = -1;
    ASSERT_EQ(::read(report[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
    ::waitpid(middle, nullptr, 0);
    ASSERT_GT(pid, 0);
    EXPECT_TRUE(gone(pid));
    ::close(report[0]);
    ::close(report[1]);
}

// ---- the snapshot store, through the agent --------------------------------------------------------------------------

class StoreTest : public AgentTest {
  protected:
    struct Replica {
        std::shared_ptr<net::Connection> link;
        std::vector<wire::Message> inbox;
        std::vector<UniqueFd> fds;
    };
    std::shared_ptr<Replica> connect() {
        auto replica = std::make_shared<Replica>();
        net::connect(io_, {options_.settings.run_dir + "/worker.sock", ""}, {"replica", "r", kSecret}, kPatienceMs,
                     [replica](Expected<std::shared_ptr<net::Connection>> c) {
                         ASSERT_TRUE(c) << c.error().message;
                         replica->link = *c;
                         (*c)->start({[r = replica.get()](net::Connection::Received m) {
                                          r->inbox.push_back(m.message);
                                          for (auto& fd : m.fds) r->fds.push_back(std::move(fd));
                                      },
                                      [](const Error&) {}});
                     });
        EXPECT_TRUE(run_until([&] { return replica->link != nullptr; }));
        return replica;
    }
    template <class M>
    M reply(Replica& r) {
        M out;
        EXPECT_TRUE(run_until([&] {
            for (auto it = r.inbox.begin(); it != r.inbox.end(); ++it)
                if (auto* m = std::get_if<M>(&*it)) {
                    out = *m;
                    r.inbox.erase(it);
                    return true;
                }
            return false;
        }));
        return out;
    }
    wire::StoreReady open(Replica& r, uint64_t replica, const std::string& identity = "model", uint64_t block_bytes = 4096,
                          const std::string& uid = "m") {
        r.link->send(wire::StoreOpen{{{replica}, {1}}, uid, sha256(identity), block_bytes});
        return reply<wire::StoreReady>(r);
    }
    static std::vector<Digest> keys(std::initializer_list<int> names) {
        std::vector<Digest> out;
        for (const int n : names) out.push_back(sha256("key" + std::to_string(n)));
        return out;
    }
};

TEST_F(StoreTest, OnlyAReplicaThatRunsHereGetsAStore) {
    start_and_register();
    auto stranger = connect();
    EXPECT_EQ(open(*stranger, 1).slots, 0u);
    spawn("exec sleep 1000");
    auto replica = connect();
    const auto ready = open(*replica, 1);
    EXPECT_EQ(ready.slots, (1u << 19) / 4096) << "half of the bound";
    EXPECT_EQ(ready.slot_bytes, 4096u);
    ASSERT_EQ(replica->fds.size(), 1u);
    struct stat st {};
    ASSERT_EQ(::fstat(replica->fds[0].get(), &st), 0);
    EXPECT_EQ(st.st_size, 1 << 19);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
    EXPECT_EQ(st.st_blocks, 0) << "no memory before a slot is filled";
}

TEST_F(StoreTest, ReplicasShareWhatIsPublishedAndADyingWriterPublishesNothing) {
    start_and_register();
    spawn("exec sleep 1000", 1);
    spawn("exec sleep 1000", 2);
    auto a = connect(), b = connect();
    open(*a, 1);
    open(*b, 2);
    a->link->send(wire::StoreAllot{1, keys({1, 2, 3})});
    const auto given = reply<wire::StoreSlots>(*a);
    ASSERT_EQ(given.slots.size(), 3u);
    auto memory = Mapping::map_fd(a->fds[0].get(), 1 << 19, true);
    ASSERT_TRUE(memory);
    std::memset(memory->mutable_bytes().data() + given.slots[0] * 4096u, 'x', 4096);
    a->link->send(wire::StorePublish{{given.slots[0], given.slots[1], 0xFFFFFFFF, 70'000}, true});
    b->link->send(wire::StoreAllot{2, keys({1, 3, 4})});
    const auto second = reply<wire::StoreSlots>(*b);
    ASSERT_EQ(second.slots.size(), 3u);
    EXPECT_EQ(second.slots[0], UINT32_MAX) << "there already";
    EXPECT_EQ(second.slots[1], UINT32_MAX) << "being filled";
    EXPECT_NE(second.slots[2], UINT32_MAX);

    a->link->close();  // the writer dies with slot 3 unfinished
    ASSERT_TRUE(run_until([&] {
        const auto stats = await<wire::WorkerStats>();
        return stats && stats->snapshots_filling == 1 && stats->snapshots_complete == 2;
    }));
    b->link->send(wire::StoreLease{3, keys({1, 2, 3})});
    const auto leased = reply<wire::StoreSlots>(*b);
    EXPECT_EQ(leased.slots, (std::vector<uint32_t>{given.slots[0], given.slots[1]})) << "the longest complete run";
    auto view = Mapping::map_fd(b->fds[0].get(), 1 << 19, false);
    ASSERT_TRUE(view);
    EXPECT_EQ(static_cast<char>(view->bytes()[leased.slots[0] * 4096u + 4095]), 'x');
    b->link->send(wire::StoreUnlease{leased.slots});
}

TEST_F(StoreTest, StoreIsDroppedWithTheLastStoppedReplicaOfItsModel) {
    start_and_register();
    spawn("exec sleep 1000", 1);
    auto a = connect();
    const auto first = open(*a, 1);
    EXPECT_GT(first.slots, 0u);
    a->link->send(wire::StoreAllot{1, keys({1})});
    a->link->send(wire::StorePublish{reply<wire::StoreSlots>(*a).slots, true});
    stop(10'000);
    ASSERT_TRUE(await<wire::ReplicaExited>());
    ASSERT_TRUE(run_until([&] {
        const auto stats = await<wire::WorkerStats>();
        return stats && stats->snapshots_complete == 0 && stats->snapshots_free == 0;
    }));
    // Its links answer as if there was no store.
    a->link->send(wire::StoreAllot{2, keys({1})});
    EXPECT_EQ(reply<wire::StoreSlots>(*a).slots, (std::vector<uint32_t>{UINT32_MAX}));
}

TEST_F(StoreTest, WeightsGoFromOneReplicaToTheNextAndTheFillersDeathIsNoticed) {
    start_and_register();
    spawn("exec sleep 1000", 1);
    auto a = connect(), b = connect(), c = connect(), stranger = connect();
    const auto ask = [](Replica& r, uint64_t replica) {
        r.link->send(wire::WeightsOpen{{{replica}, {1}}, "m", sha256("weights"), 8192});
    };
    ask(*stranger, 9);
    EXPECT_EQ(reply<wire::WeightsGrant>(*stranger).state, wire::WeightsState::kNone) << "no such replica runs here";
    ask(*a, 1);
    EXPECT_EQ(reply<wire::WeightsGrant>(*a).state, wire::WeightsState::kFill);
    ask(*b, 1);
    a->link->close();
    EXPECT_EQ(reply<wire::WeightsGrant>(*b).state, wire::WeightsState::kFill);
    ASSERT_EQ(b->fds.size(), 1u);
    ASSERT_EQ(::pwrite(b->fds[0].get(), "w", 1, 8191), 1);
    ASSERT_EQ(::fcntl(b->fds[0].get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
    ask(*c, 1);
    b->link->send(wire::WeightsFilled{true});
    EXPECT_EQ(reply<wire::WeightsGrant>(*c).state, wire::WeightsState::kReady);
    ASSERT_EQ(c->fds.size(), 1u);
    char byte = 0;
    EXPECT_EQ(::pread(c->fds[0].get(), &byte, 1, 8191), 1);
    EXPECT_EQ(byte, 'w');
}

TEST_F(StoreTest, NothingIsSharedWhereThatIsSwitchedOff) {
    options_.settings.share_weights = false;
    start_and_register();
    spawn("exec sleep 1000", 1);
    auto a = connect();
    a->link->send(wire::WeightsOpen{{{1}, {1}}, "m", sha256("weights"), 8192});
    EXPECT_EQ(reply<wire::WeightsGrant>(*a).state, wire::WeightsState::kNone);
}

TEST_F(StoreTest, AnotherModelGetsWhatIsLeftAndWrongSizesGetNothing) {
    start_and_register();
    spawn("exec sleep 1000", 1);
    auto a = connect(), b = connect(), c = connect(), d = connect();
    EXPECT_EQ(open(*a, 1, "one").slots, 128u);
    EXPECT_EQ(open(*b, 1, "two").slots, 64u);
    EXPECT_EQ(open(*c, 1, "one", 8192).slots, 0u) << "same identity, other block size";
    EXPECT_EQ(open(*d, 1, "three", uint64_t{1} << 40).slots, 0u);
}

}  // namespace
}  // namespace baton::worker
