#include "baton/http/tls.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <thread>

#include "baton/http/client.hpp"
#include "unit/http/server_fixture.hpp"

namespace baton::http {
namespace {

using namespace test;  // NOLINT: the fixture is this test's vocabulary
using ::testing::HasSubstr;

/// Servers and clients of these tests speak TLS; RawSockets made within a Plainly do not.
class Tls : public ::testing::Test {
  protected:
    void SetUp() override { over_tls() = true; }
    void TearDown() override { over_tls() = false; }
};

struct Plainly {
    Plainly() { over_tls() = false; }
    ~Plainly() { over_tls() = true; }
};

std::unique_ptr<RawSocket> plain_socket(uint16_t port) {
    const Plainly now;
    return std::make_unique<RawSocket>(port);
}

/// A client with settings of its own; `prepare` gets its SSL before the handshake.
struct ChosenClient {
    template <class Prepare>
    ChosenClient(uint16_t port, Prepare prepare) : socket(plain_socket(port)), context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free), tls(SSL_new(context.get()), &SSL_free) {
        BIO* bio = new_socket_bio(socket->fd());
        SSL_set_bio(tls.get(), bio, bio);
        prepare(tls.get());
        good = SSL_connect(tls.get()) == 1;
    }
    std::string ask(const std::string& request) {
        if (SSL_write(tls.get(), request.data(), static_cast<int>(request.size())) <= 0) return "";
        std::array<char, 4096> bytes{};
        const int n = SSL_read(tls.get(), bytes.data(), bytes.size());
        return n > 0 ? std::string(bytes.data(), static_cast<size_t>(n)) : "";
    }

    std::unique_ptr<RawSocket> socket;
    std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context;
    std::unique_ptr<SSL, decltype(&SSL_free)> tls;
    bool good = false;
};

std::string subject_seen_by(const RawSocket& client) {
    X509* certificate = SSL_get1_peer_certificate(client.tls());
    std::array<char, 100> name{};
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name.data(), name.size());
    X509_free(certificate);
    return name.data();
}

TEST_F(Tls, PlainHttpIsToldWhatIsSpokenHere) {
    const auto server = start(echo());
    for (const std::string& request : {get("/"), post("/", std::string(100'000, 'x')), std::string("g")}) {
        const auto client = plain_socket(server->port());
        client->send(request);
        const std::string answer = client->read_to_end();
        EXPECT_EQ(status_of(answer), 400);
        EXPECT_THAT(answer, HasSubstr("this port speaks TLS"));
    }
    EXPECT_EQ(server->stats().protocol_errors, 3u);
    EXPECT_EQ(server->stats().tls_handshakes, 0u);
    RawSocket after(server->port());
    after.send(get("/"));
    EXPECT_EQ(status_of(after.read_answer()), 200);
}

TEST_F(Tls, WhatIsNoHandshakeEndsTheConnection) {
    const auto server = start(echo());
    std::string huge("\x16\x03\x01\xff\xff", 5);
    huge.append(70'000, '\x01');
    for (const std::string& bytes : {std::string("\x16\x03\x01\x00\x05nope!", 10), std::string("\x80\x2e\x01\x00\x02", 5) + std::string(100, '\0'), std::string(2000, '\x16'), huge}) {
        const auto client = plain_socket(server->port());
        client->send(bytes);
        EXPECT_EQ(status_of(client->read_to_end()), 0);
    }
    // One who leaves in the middle of it.
    RawSocket whole(server->port());
    plain_socket(server->port())->send(std::string("\x16\x03\x01\x02\x00\x01", 6));
    plain_socket(server->port())->reset();
    whole.send(get("/"));
    EXPECT_EQ(status_of(whole.read_answer()), 200);
    while (server->stats().tls_handshakes != 0) std::this_thread::yield();
    EXPECT_GE(server->stats().tls_handshakes_failed, 4u);
}

TEST_F(Tls, SilentAndUnfinishedHandshakesRunOutOfTime) {
    ServerOptions options;
    options.tls_handshake_timeout_ms = 60;
    const auto server = start(echo(), options);
    const auto silent = plain_socket(server->port());
    const auto begun = plain_socket(server->port());
    begun->send("\x16\x03\x01");
    EXPECT_TRUE(silent->at_end());
    EXPECT_TRUE(begun->at_end());
    EXPECT_EQ(server->stats().tls_handshakes_failed, 2u);
}

TEST_F(Tls, UnfinishedHandshakesDoNotKeepOthersOut) {
    ServerOptions options;
    options.tls_handshakes_max = 4;
    const auto server = start(echo(), options);
    std::vector<std::unique_ptr<RawSocket>> crowd;
    for (int i = 0; i < 12; ++i) {
        crowd.push_back(plain_socket(server->port()));
        crowd.back()->send("\x16\x03\x01");
    }
    RawSocket client(server->port());
    ASSERT_TRUE(client.connected());
    client.send(get("/"));
    EXPECT_EQ(status_of(client.read_answer()), 200);
    EXPECT_LE(server->stats().tls_handshakes, 4u);
}

TEST_F(Tls, ManyHandshakesAtOnceAreAllServed) {
    ServerOptions options;
    options.tls_handshakes_max = 8;
    const auto server = start(echo(), options);
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (int i = 0; i < 50; ++i) {
        threads.emplace_back([&] {
            RawSocket client(server->port());
            client.send(get("/"));
            if (status_of(client.read_answer()) == 200) ++right;
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(right, 50);
}

TEST_F(Tls, OnlyGoodProtocolsAndCiphers) {
    const auto server = start(echo());
    const auto version = [](int v) { return [v](SSL* tls) { SSL_set_security_level(tls, 0); SSL_set_min_proto_version(tls, v), SSL_set_max_proto_version(tls, v); }; };
    EXPECT_FALSE(ChosenClient(server->port(), version(TLS1_VERSION)).good);
    EXPECT_FALSE(ChosenClient(server->port(), version(TLS1_1_VERSION)).good);
    for (const int v : {TLS1_2_VERSION, TLS1_3_VERSION}) {
        ChosenClient client(server->port(), version(v));
        ASSERT_TRUE(client.good);
        EXPECT_EQ(SSL_version(client.tls.get()), v);
        EXPECT_EQ(status_of(client.ask(get("/"))), 200);
        EXPECT_EQ(SSL_session_reused(client.tls.get()), 0);
        EXPECT_FALSE(SSL_SESSION_is_resumable(SSL_get0_session(client.tls.get())));
    }
    for (const char* weak : {"AES256-SHA", "AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-SHA", "NULL-SHA256"}) {
        EXPECT_FALSE(ChosenClient(server->port(), [&](SSL* tls) {
                         SSL_set_security_level(tls, 0);
                         SSL_set_max_proto_version(tls, TLS1_2_VERSION);
                         SSL_set_cipher_list(tls, weak);
                     }).good)
            << weak;
    }
}

TEST_F(Tls, AlpnChoosesHttp11) {
    const auto server = start(echo());
    const auto offer = [](std::string protocols) {
        return [protocols](SSL* tls) { SSL_set_alpn_protos(tls, reinterpret_cast<const unsigned char*>(protocols.data()), static_cast<unsigned>(protocols.size())); };
    };
    ChosenClient both(server->port(), offer("\x02h2\x08http/1.1"));
    ASSERT_TRUE(both.good);
    const unsigned char* chosen = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(both.tls.get(), &chosen, &size);
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(chosen), size), "http/1.1");
    EXPECT_FALSE(ChosenClient(server->port(), offer("\x02h2")).good);
    EXPECT_TRUE(ChosenClient(server->port(), [](SSL*) {}).good);
}

TEST_F(Tls, NobodyNegotiatesAnew) {
    const auto server = start(echo());
    ChosenClient client(server->port(), [](SSL* tls) { SSL_set_max_proto_version(tls, TLS1_2_VERSION); });
    ASSERT_TRUE(client.good);
    EXPECT_EQ(SSL_renegotiate(client.tls.get()), 1);
    EXPECT_NE(SSL_do_handshake(client.tls.get()), 1);
    RawSocket other(server->port());
    other.send(get("/"));
    EXPECT_EQ(status_of(other.read_answer()), 200);
}

TEST_F(Tls, NewKeysOfAConnectionAreTakenOver) {
    const auto server = start(echo());
    ChosenClient client(server->port(), [](SSL* tls) { SSL_set_min_proto_version(tls, TLS1_3_VERSION); });
    ASSERT_TRUE(client.good);
    for (int i = 0; i < 20; ++i) {
        ASSERT_EQ(SSL_key_update(client.tls.get(), SSL_KEY_UPDATE_REQUESTED), 1);
        if (i % 2 == 0) {
            ASSERT_EQ(SSL_do_handshake(client.tls.get()), 1);
        }
        ASSERT_EQ(status_of(client.ask(get("/"))), 200) << i;
    }
}

TEST_F(Tls, ARequestInOneBytePiecesAndABigBody) {
    const auto server = start(echo());
    RawSocket client(server->port());
    for (const char c : get("/slow")) client.send({&c, 1});
    EXPECT_EQ(body_of(client.read_answer()), "GET /slow ");
    const std::string body(5'000'000, 'b');
    client.send(post("/big", body));
    EXPECT_EQ(body_of(client.read_answer()), "POST /big " + body);
}

TEST_F(Tls, TheClosingAlertTellsACompleteEndFromABrokenOne) {
    Inbox inbox;
    const auto server = start([&](std::shared_ptr<Exchange> exchange) { inbox.put(std::move(exchange)); });
    for (const bool broken : {false, true}) {
        RawSocket client(server->port());
        client.send("GET / HTTP/1.0\r\nHost: a\r\n\r\n");  // an answer that ends with the connection
        const auto exchange = inbox.take();
        exchange->begin_stream();
        exchange->write("data: 1\r\n\r\n");
        broken ? exchange->fail() : exchange->end();
        EXPECT_THAT(client.read_to_end(), HasSubstr("data: 1"));
        EXPECT_EQ((SSL_get_shutdown(client.tls()) & SSL_RECEIVED_SHUTDOWN) != 0, !broken);
    }
}

TEST_F(Tls, CertificatesAreExchangedForNewConnections) {
    const TestFolder folder;
    const CertificateFiles first = make_certificate(folder, "first");
    const CertificateFiles second = make_certificate(folder, "second");
    ServerOptions options;
    options.tls_certificate = first.certificate;
    options.tls_key = first.key;
    const auto server = start(echo(), options);
    EXPECT_EQ(server->certificate()->subject, "CN=first");
    RawSocket old(server->port());
    EXPECT_EQ(subject_seen_by(old), "first");

    const auto wrong = server->load_certificate(second.certificate, first.key);
    ASSERT_FALSE(wrong.has_value());
    EXPECT_EQ(wrong.error().param, "tls_key");
    EXPECT_EQ(subject_seen_by(RawSocket(server->port())), "first") << "a bad pair changes nothing";

    const auto facts = server->load_certificate(second.certificate, second.key);
    ASSERT_TRUE(facts.has_value());
    EXPECT_EQ(facts->subject, "CN=second");
    EXPECT_EQ(server->certificate()->sha256, facts->sha256);
    EXPECT_EQ(subject_seen_by(RawSocket(server->port())), "second");
    old.send(get("/"));
    EXPECT_EQ(status_of(old.read_answer()), 200) << "who is connected stays so";
}

TEST_F(Tls, AServerWithoutTlsTakesNoCertificate) {
    const Plainly now;
    const auto server = start(echo());
    EXPECT_FALSE(server->certificate().has_value());
    const auto loaded = server->load_certificate(any_certificate().certificate, any_certificate().key);
    ASSERT_FALSE(loaded.has_value());
    EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
}

TEST_F(Tls, FilesThatAreWrongAreNamed) {
    const TestFolder folder;
    const CertificateFiles good = make_certificate(folder, "good");
    const CertificateFiles other = make_certificate(folder, "other");
    const CertificateFiles rsa = make_certificate(folder, "rsa", 2, 2048);
    const CertificateFiles weak = make_certificate(folder, "weak", 2, 1024);
    const CertificateFiles locked = make_certificate(folder, "locked", 2, 0, "secret");
    std::ofstream(folder.file("text")) << "no PEM at all\n";
    struct Row {
        std::string certificate, key, param, words;
    };
    const std::vector<Row> rows = {
        {folder.file("none"), good.key, "tls_certificate", "cannot be read: No such file"},
        {good.certificate, folder.file("none"), "tls_key", "cannot be read: No such file"},
        {folder.file("text"), good.key, "tls_certificate", "no certificate in PEM"},
        {good.key, good.key, "tls_certificate", "no certificate in PEM"},
        {good.certificate, folder.file("text"), "tls_key", "no private key in PEM"},
        {good.certificate, other.key, "tls_key", "is not the key of"},
        {good.certificate, rsa.key, "tls_key", "is not the key of"},
        {locked.certificate, locked.key, "tls_key", "without a password"},
        {weak.certificate, weak.key, "tls_certificate", "too small"},
        {good.certificate, "", "tls_key", "cannot be read"},
        {"", good.key, "tls_certificate", "cannot be read"},
    };
    for (const Row& row : rows) {
        const auto facts = inspect_certificate(row.certificate, row.key);
        ASSERT_FALSE(facts.has_value()) << row.certificate << " " << row.key;
        EXPECT_EQ(facts.error().code, ErrorCode::kInvalidArgument);
        EXPECT_EQ(facts.error().param, row.param);
        EXPECT_THAT(facts.error().message, HasSubstr(row.words));
        const auto server = Server::start({.tls_certificate = row.certificate, .tls_key = row.key}, echo());
        ASSERT_FALSE(server.has_value());
        EXPECT_EQ(server.error().message, facts.error().message);
    }
    EXPECT_TRUE(inspect_certificate(rsa.certificate, rsa.key).has_value());
}

TEST_F(Tls, FactsOfACertificate) {
    const TestFolder folder;
    const CertificateFiles files = make_certificate(folder, "host.example", 100);
    const auto facts = inspect_certificate(files.certificate, files.key);
    ASSERT_TRUE(facts.has_value());
    EXPECT_EQ(facts->subject, "CN=host.example");
    EXPECT_EQ(facts->names, (std::vector<std::string>{"localhost", "127.0.0.1"}));
    EXPECT_EQ(facts->sha256.size(), 64u);
    EXPECT_EQ(facts->not_after - facts->not_before, 140 * 24 * 3600);
    EXPECT_EQ(facts->warning(facts->not_after - 15 * 24 * 3600), "");
    EXPECT_THAT(facts->warning(facts->not_after - 3600), HasSubstr("expires within 1 days"));
    EXPECT_THAT(facts->warning(facts->not_after), HasSubstr("has expired"));
    EXPECT_THAT(facts->warning(facts->not_before - 1), HasSubstr("not valid yet"));
    const CertificateFiles old = make_certificate(folder, "old", -1);
    EXPECT_THAT(inspect_certificate(old.certificate, old.key)->warning(std::time(nullptr)), HasSubstr("has expired"));
}

TEST_F(Tls, ClientsTrustOnlyWhatTheyAreTold) {
    ServerOptions options;
    options.host = "0.0.0.0";
    const auto server = start(echo(), options);
    const std::string port = std::to_string(server->port());
    const auto ask = [&](const std::string& host, const std::string& ca_file) {
        ClientOptions way;
        way.base_url = "https://" + host + ":" + port;
        way.ca_file = ca_file;
        return (*Client::create(way))->get("/");
    };
    EXPECT_EQ(ask("127.0.0.1", any_certificate().certificate)->status, 200);
    EXPECT_EQ(ask("localhost", any_certificate().certificate)->status, 200);

    const TestFolder folder;
    const CertificateFiles other = make_certificate(folder, "other");
    const CertificateFiles old = make_certificate(folder, "old", -1);
    for (const auto& [host, ca, words] : {std::tuple<std::string, std::string, std::string>{"127.0.0.1", "", "certificate is not trusted"},
                                          {"127.0.0.1", other.certificate, "certificate is not trusted"},
                                          {"127.0.0.2", any_certificate().certificate, "IP address mismatch"}}) {
        const auto answer = ask(host, ca);
        ASSERT_FALSE(answer.has_value()) << host << ca;
        EXPECT_EQ(answer.error().code, ErrorCode::kIo);
        EXPECT_THAT(answer.error().message, HasSubstr(words));
    }
    const auto no_file = ask("127.0.0.1", folder.file("none"));
    ASSERT_FALSE(no_file.has_value());
    EXPECT_EQ(no_file.error().code, ErrorCode::kInvalidArgument);

    ASSERT_TRUE(server->load_certificate(old.certificate, old.key).has_value()) << "an old certificate is the operator's affair";
    const auto expired = ask("127.0.0.1", old.certificate);
    ASSERT_FALSE(expired.has_value());
    EXPECT_THAT(expired.error().message, HasSubstr("expired"));
}

TEST_F(Tls, AClientThatMeetsNoTlsSaysSo) {
    std::unique_ptr<Server> plain;
    {
        const Plainly now;
        plain = start(echo());
    }
    const auto answer = (*Client::create(way_to(*plain)))->get("/");
    ASSERT_FALSE(answer.has_value());
    EXPECT_EQ(answer.error().code, ErrorCode::kIo);
    EXPECT_THAT(answer.error().message, HasSubstr("no TLS connection to https://127.0.0.1:"));
    // And the other way round the server's own words arrive.
    const auto server = start(echo());
    ClientOptions way;
    way.base_url = "http://127.0.0.1:" + std::to_string(server->port());
    const auto told = (*Client::create(way))->get("/");
    ASSERT_TRUE(told.has_value());
    EXPECT_EQ(told->status, 400);
    EXPECT_THAT(told->body, HasSubstr("https://"));
}

}  // namespace
}  // namespace baton::http
