#include "hub/response_parser.hpp"

#include <gtest/gtest.h>

namespace baton::hub {
namespace {

struct Read {
    bool ok = false;
    bool done = false;
    int status = 0;
    std::string body;
    std::string rest;
    bool keeps_alive = false;
};

/// Feeds `bytes` in pieces of `piece`; then the connection is closed where `close`.
Read read(std::string_view bytes, size_t piece, bool close = false, bool no_body = false) {
    ResponseParser parser(no_body);
    Read out;
    while (!bytes.empty() && !parser.done()) {
        const auto n = parser.take(bytes.substr(0, piece), out.body);
        if (!n) return out;
        bytes.remove_prefix(*n);
    }
    if (close && !parser.close()) return out;
    out.ok = true;
    out.done = parser.done();
    out.status = parser.head().status;
    out.rest = bytes;
    out.keeps_alive = parser.keeps_alive();
    return out;
}

TEST(ResponseParser, ReadsAllFramingsInPiecesOfAnySize) {
    struct Case {
        const char* bytes;
        const char* body;
        bool close;
        bool keeps;
    };
    const Case cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloNEXT", "hello", false, true},
        {"HTTP/1.1 206\r\ncontent-length:0\r\nConnection: close\r\n\r\nNEXT", "", false, false},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nhel\r\n002\r\nlo\r\n0\r\nTrailer: x\r\n\r\nNEXT", "hello", false, true},
        {"HTTP/1.0 200 OK\r\n\r\nhello", "hello", true, false},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokNEXT", "ok", false, true},
        {"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\nNEXT", "", false, true},
    };
    for (const Case& c : cases)
        for (const size_t piece : {1, 2, 3, 7, 1000}) {
            const Read r = read(c.bytes, piece, c.close);
            EXPECT_TRUE(r.ok && r.done) << c.bytes << piece;
            EXPECT_EQ(r.body, c.body);
            EXPECT_EQ(r.rest, c.close ? "" : "NEXT");
            EXPECT_EQ(r.keeps_alive, c.keeps);
        }
}

TEST(ResponseParser, AnswersToHeadHaveNoBody) {
    const Read r = read("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nNEXT", 1000, false, true);
    EXPECT_TRUE(r.done);
    EXPECT_EQ(r.rest, "NEXT");
}

TEST(ResponseParser, RefusesWhatIsNotExact) {
    for (const char* bad : {
             "nonsense\r\n\r\n",
             "\r\n\r\n",
             "HTTP/2 200 OK\r\n\r\n",
             "HTTP/1.1 20 OK\r\n\r\n",
             "HTTP/1.1 2000\r\n\r\n",
             "HTTP/1.1 101 Switching\r\n\r\n",
             "HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\n",
             "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
             "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
             "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
             "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
             "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
             "HTTP/1.1 200 OK\r\nA B: c\r\n\r\n",
             "HTTP/1.1 200 OK\r\n: c\r\n\r\n",
             "HTTP/1.1 200 OK\r\nnocolon\r\n\r\n",
             "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
             "HTTP/1.1 200 OK\r\nA: b\x01\r\n\r\n",
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
         })
        for (const size_t piece : {1, 1000}) EXPECT_FALSE(read(bad, piece).ok) << bad;
}

TEST(ResponseParser, EverythingEndlessIsCut) {
    const std::string ok = "HTTP/1.1 200 OK\r\n";
    EXPECT_FALSE(read(ok + "A: " + std::string(100'000, 'x'), 4096).ok);
    std::string many = ok;
    for (int i = 0; i < 300; ++i) many += "A: b\r\n";
    EXPECT_FALSE(read(many + "\r\n", 4096).ok);
    const std::string chunked = ok + "Transfer-Encoding: chunked\r\n\r\n";
    EXPECT_FALSE(read(chunked + "1;" + std::string(5'000, 'x'), 4096).ok);
    EXPECT_FALSE(read(chunked + "0\r\nA: " + std::string(70'000, 'x') + "\r\n\r\n", 4096).ok);
    std::string trailer = chunked + "0\r\n";
    for (int i = 0; i < 10'000; ++i) trailer += "A: b\r\n";
    EXPECT_FALSE(read(trailer + "\r\n", 4096).ok);
    std::string interim;
    for (int i = 0; i < 20; ++i) interim += "HTTP/1.1 100 Continue\r\n\r\n";
    EXPECT_FALSE(read(interim, 4096).ok);
}

TEST(ResponseParser, ACutAnswerIsNoAnswer) {
    const std::string whole = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n\r\n";
    for (size_t n = 1; n < whole.size(); ++n) EXPECT_FALSE(read(whole.substr(0, n), 1000, true).ok) << n;
    const std::string sized = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhel";
    for (size_t n = 1; n < sized.size(); ++n) EXPECT_FALSE(read(sized.substr(0, n), 1000, true).ok) << n;
}

TEST(ResponseParser, FieldsAreFoundByLowerCaseName) {
    ResponseParser parser;
    std::string body;
    ASSERT_TRUE(parser.take("HTTP/1.1 200 OK\r\nX-Linked-ETag:  \"ab\" \r\nContent-Length: 9\r\n\r\n", body));
    EXPECT_EQ(parser.head().field("x-linked-etag"), "\"ab\"");
    EXPECT_EQ(parser.head().field("absent"), "");
    EXPECT_EQ(parser.head().length, 9u);
}

}  // namespace
}  // namespace baton::hub
