#include "net/handshake.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace baton::net {
namespace {

const std::string kC(64, 'c'), kA(64, 'a');

Handshake connecting(std::string secret = "s") { return {Side::kConnecting, {"peer", "d", std::move(secret)}, kC}; }
Handshake accepting(std::string secret = "s") { return {Side::kAccepting, {"replica", "p", std::move(secret)}, kA}; }

TEST(Handshake, BothSidesProveTheSecret) {
    Handshake c = connecting(), a = accepting();
    EXPECT_FALSE(a.first());
    const auto one = a.on_message(*c.first());
    ASSERT_TRUE(one && one->reply);
    EXPECT_FALSE(one->done);
    const auto two = c.on_message(*one->reply);
    ASSERT_TRUE(two && two->reply && two->done);
    const auto three = a.on_message(*two->reply);
    ASSERT_TRUE(three && three->done);
    EXPECT_FALSE(three->reply);
    EXPECT_EQ(a.peer().name, "d");
    EXPECT_EQ(c.peer().name, "p");
}

TEST(Handshake, ProofIsPinned) {
    // Golden: two versions of baton must agree. Computed with Python's hmac over the text of docs/XAVIER.md.
    EXPECT_EQ(link_proof(Side::kConnecting, {"peer", "d", "s"}, kA, kC), 
              "b280654952d7a7417376fabc503a421b8815a3be3dcceff22bf664b99f53a4fc");
    EXPECT_EQ(link_proof(Side::kAccepting, {"replica", "p", "s"}, kC, kA), 
              "e65957a2bf47ae9c6f567c53ff7d7f6253165b553334e290ef595adceb3b6014");
}

TEST(Handshake, AnyChangeOfAMessageIsNoticed) {
    // A script with one message changed at each step: never done on the side that got it.
    using Change = std::function<void(wire::Hello&)>;
    const std::vector<Change> changes{
        [](wire::Hello& h) { h.version = 2; },           [](wire::Hello& h) { h.kind = "worker"; },
        [](wire::Hello& h) { h.name += "x"; },           [](wire::Hello& h) { h.challenge[5] = 'z'; },
        [](wire::Hello& h) { h.challenge = "short"; },   [](wire::Hello& h) { h.proof[0] = h.proof[0] == '0' ? '1' : '0'; },
        [](wire::Hello& h) { h.proof.clear(); },         [](wire::Hello& h) { h.proof += "0"; },
        [](wire::Hello& h) { h.name.assign(300, 'n'); }, [](wire::Hello& h) { h.kind.clear(); },
    };
    for (size_t i = 0; i < changes.size(); ++i) {
        for (const bool answer : {true, false}) {
            Handshake c = connecting(), a = accepting();
            auto one = a.on_message(*c.first());
            ASSERT_TRUE(one);
            if (answer) changes[i](std::get<wire::Hello>(*one->reply));
            auto two = c.on_message(*one->reply);
            if (answer) {
                EXPECT_FALSE(two.has_value()) << i;
                continue;
            }
            ASSERT_TRUE(two);
            changes[i](std::get<wire::Hello>(*two->reply));
            EXPECT_FALSE(a.on_message(*two->reply).has_value()) << i;
        }
    }
}

TEST(Handshake, OtherSecretsAndOtherMessages) {
    Handshake c = connecting("one"), a = accepting("two");
    auto reply = a.on_message(*c.first());
    ASSERT_TRUE(reply);
    EXPECT_EQ(c.on_message(*reply->reply).error().code, ErrorCode::kUnauthorized);
    Handshake b = accepting();
    EXPECT_EQ(b.on_message(wire::Abort{}).error().code, ErrorCode::kCorrupt);
    Handshake d = connecting();
    const auto refused = d.on_message(wire::Refused{static_cast<uint8_t>(ErrorCode::kUnsupported), "too old"});
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(refused.error().message, "refused: too old");
    EXPECT_EQ(connecting().on_message(wire::Refused{200, std::string(10'000, 'x')}).error().code, ErrorCode::kUnavailable);
    // Without a secret on either side the handshake still works (sockets that only this user can reach).
    Handshake e = connecting(""), f = accepting("");
    auto one = f.on_message(*e.first());
    auto two = e.on_message(*one->reply);
    ASSERT_TRUE(two);
    EXPECT_TRUE(f.on_message(*two->reply)->done);
    // The accepting side's own proof does not open it.
    Handshake mirror = accepting();
    wire::Hello hello{1, "replica", "p", kC, ""};
    auto shown = mirror.on_message(hello);
    ASSERT_TRUE(shown);
    hello.proof = std::get<wire::Hello>(*shown->reply).proof;
    EXPECT_FALSE(mirror.on_message(hello).has_value());
}

}  // namespace
}  // namespace baton::net
