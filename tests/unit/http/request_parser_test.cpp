#include "http/request_parser.hpp"

#include <gtest/gtest.h>

#include <random>

namespace baton::http {
namespace {

using Event = RequestParser::Event;

struct Outcome {
    int error = 0;  ///< status, or 0 for a complete request
    bool complete = false;
    size_t consumed = 0;
    Request request;
    friend bool operator==(const Outcome& a, const Outcome& b) {
        return a.error == b.error && a.complete == b.complete &&
               (a.error != 0 || a.consumed == b.consumed) &&
               (!a.complete ||
                (a.request.body == b.request.body && a.request.headers == b.request.headers &&
                 a.request.path == b.request.path));
    }
};

/// Feeds `bytes` in pieces of at most `piece`.
Outcome parse(std::string_view bytes, size_t piece = SIZE_MAX, ParserLimits limits = {}) {
    RequestParser parser(limits);
    Outcome out;
    size_t given = 0;
    for (;;) {
        const std::string_view part =
            bytes.substr(out.consumed, std::min(piece, bytes.size() - out.consumed));
        size_t used = 0;
        const Event event = parser.feed(part, used);
        EXPECT_LE(used, part.size());
        out.consumed += used;
        if (event == Event::kError) {
            out.error = parser.error_status();
            EXPECT_FALSE(parser.error_message().empty());
            return out;
        }
        if (event == Event::kDone) {
            out.complete = true;
            out.request = parser.request();
            return out;
        }
        if (event == Event::kNeedMore && out.consumed == bytes.size()) return out;
        if (++given > bytes.size() * 2 + 10) {
            ADD_FAILURE() << "no progress";
            return out;
        }
    }
}

std::string post(std::string_view fields, std::string_view body) {
    return "POST /x HTTP/1.1\r\nHost: a\r\n" + std::string(fields) + "\r\n" + std::string(body);
}

struct Row {
    const char* name;
    std::string bytes;
    int status;  ///< 0: complete, -1: waits for more
    std::string body;
};

std::vector<Row> rows() {
    const std::string chunked = "Transfer-Encoding: chunked\r\n";
    const std::string big(20'000, 'a');
    std::string many;
    for (int i = 0; i < 101; ++i) many += "X" + std::to_string(i) + ": 1\r\n";
    std::string trailers;
    for (int i = 0; i < 3000; ++i) trailers += "T" + std::to_string(i) + ": 1\r\n";
    return {
        {"plain get", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 0, ""},
        {"content length", post("Content-Length: 3\r\n", "abc"), 0, "abc"},
        {"chunked", post(chunked, "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"), 0, "abcde"},
        {"chunked upper case",
         post("TRANSFER-ENCODING: Chunked\r\n", "A\r\n0123456789\r\n0\r\n\r\n"), 0, "0123456789"},
        {"cl then te", post("Content-Length: 3\r\n" + chunked, "0\r\n\r\n"), 400, ""},
        {"te then cl", post(chunked + "Content-Length: 3\r\n", "0\r\n\r\n"), 400, ""},
        {"te gzip before cl", post("Transfer-Encoding: gzip\r\nContent-Length: 3\r\n", "abc"), 400,
         ""},
        {"te xchunked with cl", post("Transfer-Encoding: xchunked\r\nContent-Length: 3\r\n", "abc"),
         400, ""},
        {"te gzip", post("Transfer-Encoding: gzip\r\n", "abc"), 501, ""},
        {"te identity", post("Transfer-Encoding: identity\r\n", "abc"), 501, ""},
        {"te chunked, gzip", post("Transfer-Encoding: chunked, gzip\r\n", "abc"), 501, ""},
        {"te gzip, chunked", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501, ""},
        {"te chunked, chunked", post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 501,
         ""},
        {"te empty", post("Transfer-Encoding: \r\n", ""), 501, ""},
        {"two te", post(chunked + chunked, "0\r\n\r\n"), 400, ""},
        {"te tab", post("Transfer-Encoding:\tchunked\t\r\n", "0\r\n\r\n"), 0, ""},
        {"te vertical tab", post("Transfer-Encoding: \vchunked\r\n", "0\r\n\r\n"), 400, ""},
        {"two cl differing", post("Content-Length: 3\r\nContent-Length: 4\r\n", "abcd"), 400, ""},
        {"two cl equal", post("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"), 400, ""},
        {"cl list", post("Content-Length: 3, 3\r\n", "abc"), 400, ""},
        {"cl plus", post("Content-Length: +3\r\n", "abc"), 400, ""},
        {"cl minus", post("Content-Length: -1\r\n", ""), 400, ""},
        {"cl hex", post("Content-Length: 0x3\r\n", "abc"), 400, ""},
        {"cl empty", post("Content-Length:\r\n", ""), 400, ""},
        {"cl 2^64", post("Content-Length: 18446744073709551616\r\n", ""), 400, ""},
        {"cl inner space", post("Content-Length: 1 3\r\n", "abc"), 400, ""},
        {"cl too large", post("Content-Length: 8388609\r\n", ""), 413, ""},
        {"cl leading zeros", post("Content-Length: 0003\r\n", "abc"), 0, "abc"},
        {"http/1.0 chunked", "POST / HTTP/1.0\r\nHost: a\r\n" + chunked + "\r\n0\r\n\r\n", 400, ""},
        {"http/1.0 without host", "GET / HTTP/1.0\r\n\r\n", 0, ""},
        {"http/1.0 no fields, body", "POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx", 0, "x"},
        {"chunk extension without a name", post(chunked, "1;\r\na\r\n0\r\n\r\n"), 400, ""},
        {"chunk extension, open quote", post(chunked, "1;a=\"b\r\na\r\n0\r\n\r\n"), 400, ""},
        {"chunk extension, escaped end", post(chunked, "1;a=\"\\\"\r\na\r\n0\r\n\r\n"), 400, ""},
        {"chunk extension with a space", post(chunked, "1 ;a\r\na\r\n0\r\n\r\n"), 400, ""},
        {"chunk extensions", post(chunked, "1;a;b=c;d=\"e;\\\"\"\r\na\r\n0;f\r\n\r\n"), 0, "a"},
        {"Connection that is no list", post("Connection: a;b\r\n", ""), 400, ""},
        {"long chunk extension", post(chunked, "1;" + big + "\r\na\r\n0\r\n\r\n"), 400, ""},
        {"chunk extension garbage", post(chunked, "1 x\r\na\r\n0\r\n\r\n"), 400, ""},
        {"chunk size empty", post(chunked, "\r\na\r\n"), 400, ""},
        {"chunk size sign", post(chunked, "+1\r\na\r\n"), 400, ""},
        {"chunk size overflow", post(chunked, "10000000000000000\r\na"), 400, ""},
        {"chunk size over limit", post(chunked, "800001\r\na"), 413, ""},
        {"chunk bare lf", post(chunked, "1\na\r\n0\r\n\r\n"), 400, ""},
        {"chunk data overrun", post(chunked, "1\r\nab\r\n0\r\n\r\n"), 400, ""},
        {"chunk end bare lf", post(chunked, "1\r\na\n0\r\n\r\n"), 400, ""},
        {"trailer", post(chunked, "1\r\na\r\n0\r\nX: y\r\n\r\n"), 0, "a"},
        {"trailer of 70 kB",
         post(chunked, "3\r\nabc\r\n0\r\nX: " + std::string(70'000, 'y') + "\r\n\r\n"), 400, ""},
        {"thousands of trailers", post(chunked, "0\r\n" + trailers + "\r\n"), 400, ""},
        {"bare lf head", "GET / HTTP/1.1\nHost: a\n\n", 400, ""},
        {"bare lf in one line", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400, ""},
        {"bare cr in value", "GET / HTTP/1.1\r\nHost: a\r\nX: y\rz\r\n\r\n", 400, ""},
        {"space before colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, ""},
        {"nul in value", std::string("GET / HTTP/1.1\r\nHost: a\r\nX: ") + '\0' + "\r\n\r\n", 400,
         ""},
        {"obs-fold", "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", 400, ""},
        {"field without colon", "GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400, ""},
        {"empty field name", "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", 400, ""},
        {"missing host", "GET / HTTP/1.1\r\n\r\n", 400, ""},
        {"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, ""},
        {"host with path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, ""},
        {"two keys", "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nAuthorization: y\r\n\r\n",
         400, ""},
        {"absolute form", "GET http://h:1/p?q=1 HTTP/1.1\r\nHost: a\r\n\r\n", 0, ""},
        {"utf-8 target", "GET /\xC3\xA9 HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
        {"nul escape in path", "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
        {"bad escape in path", "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
        {"overlong escape in path", "GET /%C0%80 HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
        {"fragment", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
        {"no slash", "GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
        {"star", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 0, ""},
        {"star get", "GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
        {"unknown method", "BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 501, ""},
        {"lower-case method", "get / HTTP/1.1\r\nHost: a\r\n\r\n", 501, ""},
        {"connect", "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501, ""},
        {"http/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, ""},
        {"http/1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505, ""},
        {"http/0.9", "GET /\r\n\r\n", 400, ""},
        {"two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
        {"tls hello", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400, ""},
        {"large head", "GET / HTTP/1.1\r\nHost: a\r\nX: " + big + "\r\n\r\n", 431, ""},
        {"endless head", "GET / HTTP/1.1\r\nHost: a\r\nX: " + big, 431, ""},
        {"101 fields", "GET / HTTP/1.1\r\nHost: a\r\n" + many + "\r\n", 431, ""},
        {"target of 9 kB", "GET /" + std::string(9'000, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n", 414,
         ""},
        {"target of 7 kB", "GET /" + std::string(7'000, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n", 0,
         ""},
        {"expect other", post("Expect: 200-ok\r\nContent-Length: 1\r\n", "x"), 417, ""},
        {"get with body", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", 0, "hi"},
        {"post without length", post("", ""), 0, ""},
        {"blank line first", "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 0, ""},
        {"many blank lines first", "\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
        {"half a head", "GET / HTTP/1.1\r\nHost", -1, ""},
        {"half a body", post("Content-Length: 3\r\n", "ab"), -1, ""},
        {"half a chunk", post(chunked, "3\r\nab"), -1, ""},
    };
}

TEST(RequestParser, EveryRowTheSameHoweverItIsCut) {
    for (const Row& row : rows()) {
        SCOPED_TRACE(row.name);
        const Outcome whole = parse(row.bytes);
        EXPECT_EQ(whole.error, std::max(row.status, 0));
        EXPECT_EQ(whole.complete, row.status == 0);
        if (row.status == 0) {
            EXPECT_EQ(whole.request.body, row.body);
        }
        for (const size_t piece : {1, 2, 3, 7, 100}) {
            // 400 and 431 may come in either order when the bytes come slowly: the fault seen first
            // is told.
            const Outcome cut = parse(row.bytes, piece);
            EXPECT_EQ(cut.complete, whole.complete);
            EXPECT_EQ(cut.error != 0, whole.error != 0);
            if (whole.complete) {
                EXPECT_EQ(cut, whole);
            }
        }
    }
}

TEST(RequestParser, LeavesTheNextRequestAlone) {
    const std::string one = post("Transfer-Encoding: chunked\r\n", "1\r\na\r\n0\r\n\r\n");
    const std::string two = "GET /two HTTP/1.1\r\nHost: a\r\n\r\n";
    const Outcome first = parse(one + two);
    EXPECT_TRUE(first.complete);
    EXPECT_EQ(first.consumed, one.size());
}

TEST(RequestParser, SplitsTheTarget) {
    const Request request =
        parse("GET /v1/models/a%2Fb%20c/?x=1&y=a%26b+c&flag&=v HTTP/1.1\r\nHost: a\r\n\r\n")
            .request;
    EXPECT_EQ(request.path, "/v1/models/a%2Fb%20c/");
    EXPECT_EQ(request.segments, (std::vector<std::string>{"v1", "models", "a/b c", ""}));
    ASSERT_NE(request.query_value("y"), nullptr);
    EXPECT_EQ(*request.query_value("y"), "a&b c");
    EXPECT_EQ(*request.query_value("flag"), "");
    EXPECT_EQ(request.query_value("none"), nullptr);
    EXPECT_EQ(parse("GET http://h?x=2 HTTP/1.1\r\nHost: a\r\n\r\n").request.path, "/");
    EXPECT_EQ(parse("GET HTTP://h:80/p/q HTTP/1.1\r\nHost: a\r\n\r\n").request.segments,
              (std::vector<std::string>{"p", "q"}));
}

TEST(RequestParser, TrailersDoNotBecomeHeaders) {
    const Request request =
        parse(post("Transfer-Encoding: chunked\r\n", "0\r\nAuthorization: Bearer k\r\n\r\n"))
            .request;
    EXPECT_EQ(request.header("authorization"), "");
}

TEST(RequestParser, KeepAliveFollowsVersionAndConnection) {
    const auto keep = [](const std::string& bytes) {
        RequestParser parser{ParserLimits{}};
        size_t used = 0;
        EXPECT_EQ(parser.feed(bytes, used), Event::kHead);
        return parser.keep_alive();
    };
    EXPECT_TRUE(keep("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    EXPECT_FALSE(keep("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n"));
    EXPECT_FALSE(keep("GET / HTTP/1.0\r\nHost: a\r\n\r\n"));
    EXPECT_TRUE(keep("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"));
}

TEST(RequestParser, BodyGrowsWithWhatArrives) {
    RequestParser parser{ParserLimits{}};
    size_t used = 0;
    const std::string head = post("Content-Length: 8000000\r\n", "");
    EXPECT_EQ(parser.feed(head, used), Event::kHead);
    EXPECT_LT(parser.request().body.capacity(), 1000u);
}

TEST(RequestParser, RandomBytesAndMutationsNeverHarm) {
    std::mt19937 random(7);
    const auto all = rows();
    for (int round = 0; round < 20'000; ++round) {
        std::string bytes = all[random() % all.size()].bytes.substr(0, 2'000);
        const size_t edits = random() % 4;
        for (size_t i = 0; i < edits && !bytes.empty(); ++i) {
            const size_t at = random() % bytes.size();
            switch (random() % 3) {
                case 0:
                    bytes[at] = static_cast<char>(random());
                    break;
                case 1:
                    bytes.erase(at, 1 + random() % 5);
                    break;
                default:
                    bytes.insert(at, bytes.substr(0, random() % 20));
                    break;
            }
        }
        const Outcome whole = parse(bytes);
        const Outcome cut = parse(bytes, 1 + random() % 9);
        EXPECT_EQ(whole.complete, cut.complete) << bytes;
        EXPECT_EQ(whole.error != 0, cut.error != 0) << bytes;
        if (whole.complete) {
            EXPECT_EQ(whole, cut) << bytes;
        }
    }
}

}  // namespace
}  // namespace baton::http
