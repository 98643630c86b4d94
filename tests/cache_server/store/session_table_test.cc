#include "cache_server/session_table.h"

#include <gtest/gtest.h>

#include "core/limit.h"

namespace ibid {
namespace {

class SessionTableTest : public ::testing::Test {
 protected:
  SessionTableTest() : table_(Options()) {}

  static BlockStoreOptions Options() {
    BlockStoreOptions options;
    options.sessions_max = 2;
    options.leases_per_session_max = 2;
    options.leased_blocks_per_session_max = 5;
    options.reservations_per_session_max = 2;
    options.reservations_max = 3;
    options.host_bytes_max = 20 * 4096;
    options.leased_percent_per_session_max = 25;  // 5 blocks
    return options;
  }
  absl::StatusOr<LeaseId> AddLease(SessionId session, absl::Time now,
                                   std::vector<EntryId> ids = {1, 2}, uint64_t lease = 0,
                                   uint64_t taken = 0) {
    std::vector<HeldBlocks> blocks = {{std::move(ids), 4096, taken}};
    return table_.AddLease(session, LeaseId{lease}, &blocks, now);
  }
  // What the lease held.
  std::vector<EntryId> TakeLease(SessionId session, LeaseId lease) {
    LetGo let_go;
    table_.TakeLease(session, lease, &let_go);
    std::vector<EntryId> ids;
    for (const HeldBlocks& held : let_go.leases)
      ids.insert(ids.end(), held.ids.begin(), held.ids.end());
    return ids;
  }

  SessionTable table_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(SessionTableTest, EveryLimitAnswersWithItsName) {
  const SessionId session = *table_.Open("a", now_);
  const SessionId other = *table_.Open("b", now_);
  EXPECT_EQ(table_.Open("c", now_).status(),
            LimitReached("too many sessions are open", "sessions_max", 2));
  const LeaseId lease = *AddLease(session, now_);
  EXPECT_EQ(
      AddLease(session, now_, {1, 1, 1, 1}).status(),
      LimitReached("too many leased blocks of one session", "leased_blocks_per_session_max", 5));
  ASSERT_EQ(TakeLease(session, lease).size(), 2u);
  ASSERT_TRUE(AddLease(session, now_, {1, 1, 1, 1}).ok()) << "those of the other are free";
  ASSERT_TRUE(AddLease(session, now_, {1}).ok());
  EXPECT_EQ(AddLease(session, now_, {}).status(),
            LimitReached("too many leases of one session", "leases_per_session_max", 2));
  ASSERT_TRUE(table_.AddReservation(session, 1, now_).ok());
  ASSERT_TRUE(table_.AddReservation(session, 2, now_).ok());
  ASSERT_TRUE(table_.AddReservation(session, 2, now_).ok()) << "a new term for the same block";
  EXPECT_EQ(
      table_.AddReservation(session, 3, now_),
      LimitReached("too many reservations of one session", "reservations_per_session_max", 2));
  table_.RemoveReservation(session, 1);
  ASSERT_TRUE(table_.AddReservation(other, 4, now_).ok());
  ASSERT_TRUE(table_.AddReservation(other, 5, now_).ok());
  EXPECT_EQ(table_.AddReservation(session, 3, now_),
            LimitReached("too many reservations of all sessions", "reservations_max", 3));
  EXPECT_TRUE(table_.AddReservation(session, 2, now_).ok()) << "a new term takes no room";
}

TEST_F(SessionTableTest, TheLeasesOfASessionTakeNoMoreThanTheirShareOfTheHostTier) {
  const SessionId session = *table_.Open("a", now_), other = *table_.Open("b", now_);
  const auto lease = AddLease(session, now_, {1}, 0, /*taken=*/5);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(AddLease(session, now_, {2}, 0, 1).status(),
            LimitReached("too much of the host tier is leased by one session",
                         "leased_percent_per_session_max", 25));
  const auto second = AddLease(session, now_, {2}, 0, 0);
  EXPECT_TRUE(second.ok()) << "of a block that was held";
  EXPECT_TRUE(AddLease(other, now_, {2}, 0, 5).ok()) << "each has a share";
  TakeLease(session, *lease);
  TakeLease(session, *second);
  ASSERT_TRUE(AddLease(session, now_, {1}, 0, 5).ok()) << "what was given back is free";
  now_ += absl::Minutes(1);
  ASSERT_TRUE(table_.Touch(session, now_, /*renew_leases=*/false).ok());
  table_.Expire(session, now_);
  EXPECT_TRUE(AddLease(session, now_, {1}, 0, 5).ok()) << "and what lapsed";
}

TEST_F(SessionTableTest, ALeaseIsTakenOnce) {
  const SessionId session = *table_.Open("a", now_);
  const LeaseId lease = *AddLease(session, now_);
  EXPECT_EQ(TakeLease(session, lease), (std::vector<EntryId>{1, 2}));
  EXPECT_TRUE(TakeLease(session, lease).empty());
  EXPECT_EQ(table_.leases_count(), 0u);
}

// So that a client can give back a lease whose answer it never got.
TEST_F(SessionTableTest, TheClientMayChooseTheIdOfALease) {
  const SessionId session = *table_.Open("a", now_);
  EXPECT_EQ(*AddLease(session, now_, {1}, 77), LeaseId{77});
  EXPECT_TRUE(absl::IsAlreadyExists(AddLease(session, now_, {2}, 77).status()));
  const SessionId other = *table_.Open("b", now_);
  EXPECT_TRUE(AddLease(other, now_, {3}, 77).ok()) << "ids are those of a session";
  EXPECT_EQ(TakeLease(session, LeaseId{77}), std::vector<EntryId>{1});
}

TEST_F(SessionTableTest, ALeaseEndsAfterItsTermUnlessRenewed) {
  const SessionId session = *table_.Open("a", now_);
  const LeaseId lease = *AddLease(session, now_);
  now_ += absl::Seconds(20);
  ASSERT_TRUE(table_.Touch(session, now_, /*renew_leases=*/true).ok());
  now_ += absl::Seconds(14);
  EXPECT_TRUE(table_.CheckLease(session, lease, now_).ok());
  ASSERT_TRUE(table_.Touch(session, now_, /*renew_leases=*/false).ok());
  now_ += absl::Seconds(14);
  ASSERT_TRUE(table_.Touch(session, now_, /*renew_leases=*/false).ok());
  now_ += absl::Seconds(14);
  EXPECT_FALSE(table_.CheckLease(session, lease, now_).ok());
  EXPECT_EQ(table_.Expire(session, now_).leases.size(), 1u);
  EXPECT_TRUE(table_.Expire(session, now_).is_empty());
}

TEST_F(SessionTableTest, ASilentSessionEndsWithAllItHolds) {
  const SessionId session = *table_.Open("a", now_);
  ASSERT_TRUE(AddLease(session, now_).ok());
  ASSERT_TRUE(table_.AddReservation(session, 7, now_).ok());
  now_ += absl::Seconds(15);
  const LetGo let_go = table_.Expire(session, now_);
  EXPECT_EQ(let_go.leases.size(), 1u);
  EXPECT_EQ(let_go.reservations, std::vector<EntryId>{7});
  EXPECT_TRUE(absl::IsFailedPrecondition(table_.Touch(session, now_, false)));
  EXPECT_EQ(table_.sessions_count() + table_.leases_count() + table_.reservations_count(), 0u);
}

TEST_F(SessionTableTest, OnlyOldReservationsExpire) {
  const SessionId session = *table_.Open("a", now_);
  ASSERT_TRUE(table_.AddReservation(session, 1, now_).ok());
  now_ += absl::Seconds(10);
  ASSERT_TRUE(table_.AddReservation(session, 2, now_).ok());
  now_ += absl::Seconds(14);
  ASSERT_TRUE(table_.Touch(session, now_, false).ok());
  now_ += absl::Seconds(6);
  EXPECT_EQ(table_.Expire(session, now_).reservations, std::vector<EntryId>{1});
  table_.RemoveReservation(session, 2);
  table_.RemoveReservation(session, 2);
  EXPECT_EQ(table_.reservations_count(), 0u);
}

}  // namespace
}  // namespace ibid
