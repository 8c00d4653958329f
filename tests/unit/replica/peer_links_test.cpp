#include "replica/peer_links.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>

namespace baton::replica {
namespace {

using std::chrono::milliseconds;

constexpr const char* kSecret = "the secret of this test";
constexpr auto kPatience = milliseconds(20'000);  // only tells "answers" from "hangs"

kv::PoolLayout layout() {
    kv::PoolLayout l;
    l.order = kv::PoolOrder::kBlockFirst;
    l.dtype = 1;
    l.layers = 2;
    l.kv_heads = 1;
    l.head_dim = 8;
    l.block_tokens = 4;
    l.blocks = 8;
    l.page_format = "test-1";
    return l;
}

/// The links of a decode replica, and prefill replicas that accept, count, and never say who they are.
class PeerLinksTest : public ::testing::Test {
  protected:
    PeerLinksTest() {
        char pattern[] = "/tmp/baton-replica-test-XXXXXX";
        dir_ = ::mkdtemp(pattern);
        settings_.model_uid = "m";
        settings_.replica = ReplicaId{2};
        settings_.epoch = Epoch{7};
        settings_.role = Role::kDecode;
        pool_ = *xavier::SharedPool::create(layout(), 4);
        links_ = std::make_unique<PeerLinks>(PeerLinks::Services{io_, settings_, secret_, "host", {}, *pool_,
                                                                 []() -> engine::Engine& { throw std::logic_error("no link comes up here"); },
                                                                 []() -> xavier::TransferThread& { throw std::logic_error("no link comes up here"); },
                                                                 [](wire::LinkState) {}});
    }
    ~PeerLinksTest() override {
        links_.reset();
        listener_.reset();
        std::error_code ignored;
        std::filesystem::remove_all(dir_, ignored);
    }

    void listen() {
        auto listener = net::Listener::listen(io_, {dir_ + "/p", ""}, {"peer", "m/1", kSecret}, [this](std::shared_ptr<net::Connection> c) {
            ++accepted_;
            c->start({[this](net::Connection::Received r) { hellos_ += std::holds_alternative<wire::LinkHello>(r.message) ? 1 : 0; },
                      [](const Error&) {}});
            kept_.push_back(std::move(c));
        });
        ASSERT_TRUE(listener);
        listener_ = std::move(*listener);
    }

    [[nodiscard]] wire::Peers prefill(uint64_t epoch) const {
        wire::Peer p;
        p.target = {ReplicaId{1}, Epoch{epoch}};
        p.role = static_cast<uint8_t>(Role::kPrefill);
        p.host_id = "host";
        p.unix_path = dir_ + "/p";
        return {{p}};
    }

    template <class Done>
    bool run_until(Done done) {
        const auto end = std::chrono::steady_clock::now() + kPatience;
        while (!done() && std::chrono::steady_clock::now() < end) io_.run_for(milliseconds(5));
        return done();
    }

    boost::asio::io_context io_;
    std::string dir_, secret_ = kSecret;
    config::ReplicaSettings settings_;
    std::unique_ptr<xavier::SharedPool> pool_;
    std::unique_ptr<PeerLinks> links_;
    std::unique_ptr<net::Listener> listener_;
    std::vector<std::shared_ptr<net::Connection>> kept_;
    int accepted_ = 0, hellos_ = 0;
};

/// The supervisor tells the list again whenever a replica comes: also while connections are on their way.
TEST_F(PeerLinksTest, AListToldAgainMakesNoSecondLink) {
    listen();
    for (int i = 0; i < 5; ++i) links_->set_peers(prefill(1));
    ASSERT_TRUE(run_until([&] { return hellos_ > 0; }));
    for (int i = 0; i < 5; ++i) links_->set_peers(prefill(1));
    io_.run_for(milliseconds(300));
    EXPECT_EQ(accepted_, 1);
    EXPECT_EQ(hellos_, 1);
}

/// A new process of the slot is dialled although a connection to the old one is still on its way.
TEST_F(PeerLinksTest, ANewerProcessIsDialledAtOnce) {
    listen();
    links_->set_peers(prefill(1));
    links_->set_peers(prefill(2));
    ASSERT_TRUE(run_until([&] { return hellos_ > 0 && accepted_ == 2; }));
    io_.run_for(milliseconds(300));
    EXPECT_EQ(hellos_, 1) << "only the wanted process hears who we are";
}

/// A refused connection is tried again, and a list told meanwhile changes nothing about that.
TEST_F(PeerLinksTest, WhatIsNotThereYetIsDialledAgain) {
    links_->set_peers(prefill(1));
    io_.run_for(milliseconds(60));
    links_->set_peers(prefill(1));
    listen();
    ASSERT_TRUE(run_until([&] { return hellos_ > 0; }));
    io_.run_for(milliseconds(500));
    EXPECT_EQ(accepted_, 1);
    EXPECT_EQ(hellos_, 1);
}

}  // namespace
}  // namespace baton::replica
