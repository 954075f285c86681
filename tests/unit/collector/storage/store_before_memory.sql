BEGIN TRANSACTION;
CREATE TABLE collectives (
        run_id INTEGER PRIMARY KEY,
        body BLOB NOT NULL
    );
CREATE TABLE incidents (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL,
        state TEXT NOT NULL,
        severity TEXT NOT NULL,
        opened_wall_s REAL NOT NULL,
        resolved_wall_s REAL,
        body TEXT NOT NULL
    );
INSERT INTO "incidents" VALUES(1,'story','open','warning',1000.0,NULL,'{"id":1,"run":"story","run_id":"story","state":"open","severity":"warning","severity_found":"warning","kind":"slow_link","subject":"rank 5","ranks":[5],"nodes":[],"group":"mesh_dp/1,3,5,7","cause":"slow_link","pattern":"steady","headline":"Links of rank 5 (node b): 2.0x slower than before since step 60","figures":"Transfer 20.1 ms per step, compared with 10.0 ms","why":"","also":["measured in mesh_dp/1,3,5,7; mesh_tp/4,5 slow too, on the same links"],"cost":"run 1.25x slower","sentence":"Links of rank 5 (node b): 2.0x slower than before since step 60. Transfer 20.1 ms per step, compared with 10.0 ms. Cost: run 1.25x slower. Measured in mesh_dp/1,3,5,7; mesh_tp/4,5 slow too, on the same links.","suggestion":"Measure these links outside the run with nccl-tests (all_reduce_perf). Slow there, too: replace the cable or card, or exclude the node. If not, other traffic disturbs them.","since_step":60,"slowdown_ratio":2.01096350730395,"run_slowdown_ratio":1.2505095927782806,"lost_rank_seconds":null,"evidence":{"transfer_ns":20072708.733110093,"peers_transfer_ns":9981637.488798138,"robust_z":101.096350730395,"persistence_ratio":1.0,"steps_judged":60.0,"algbw_bytes_per_s":49818886.59528621,"busbw_bytes_per_s":49818886.59528621,"transfer_excess_ns/mesh_dp/1,3,5,7":10091071.244311955,"transfer_excess_ns/mesh_tp/4,5":9899485.193032822,"past_transfer_ns/mesh_dp/1,3,5,7":9981637.488623345,"step_before_ns":60000000.0,"steps_to_close":60.0},"details":{"suspected rank":"5","groups":"mesh_dp/1,3,5,7; mesh_tp/4,5"},"lines":null,"opened_wall_s":1000.0,"updated_wall_s":1000.0,"reopened_wall_s":null,"resolved_wall_s":null,"resolved_reason":"","merged_into":null,"findings":[4],"changes":[{"wall_s":1000.0,"what":"opened","text":"Links of rank 5 (node b): 2.0x slower than before since step 60. Transfer 20.1 ms per step, compared with 10.0 ms. Cost: run 1.25x slower. Measured in mesh_dp/1,3,5,7; mesh_tp/4,5 slow too, on the same links."}]}');
CREATE TABLE lives (
        run_id INTEGER NOT NULL,
        rank INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (run_id, rank)
    );
INSERT INTO "lives" VALUES(1,0,0,'{"hello":[["story",0,0,4,"node-a",0,"boot-0-0000",1000,"","","","",""],1,0,0,1000000000,"","","",false,0,"",false,""],"first_sequence":1,"last_sequence":3,"admitted":3,"duplicates":0,"steps":{"made":null,"buffered":null,"published":160,"published_elsewhere":0,"overwritten":0,"dropped_in_reports":0,"late":0},"last_report_wall_s":0.0,"last_step":159,"totals":[160,7600000000,{},0,0,0,0,0,0,0,0,0,0,0,{},null,null,0,0,{},0,0,null,null,null],"losses":[0,0,0,{},{},{},null,null,{}],"devices":[],"said":null,"seen":null,"is_gone":false,"ended_wall_s":null,"flops":[null,null,"",null,"",{},null,false],"synchronizations":null}');
CREATE TABLE preflights (
        id INTEGER PRIMARY KEY,
        node TEXT NOT NULL,
        preflight TEXT NOT NULL,
        wall_s REAL NOT NULL,
        device TEXT NOT NULL,
        status TEXT NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (node, preflight)
    );
CREATE TABLE rank_intervals (
        run_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        begin_wall_s REAL NOT NULL,
        end_wall_s REAL NOT NULL,
        ranks INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (run_id, attempt, begin_wall_s)
    );
CREATE TABLE runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL UNIQUE,
        is_known INTEGER NOT NULL,
        changed_wall_s REAL NOT NULL,
        body TEXT NOT NULL,
        story TEXT NOT NULL DEFAULT '{}'
    );
INSERT INTO "runs" VALUES(1,'story',1,1800001009.6,'{"run":"story","world_size":4,"restart_count":0,"attempt":0,"begun_wall_s":1800001000.0,"changed_wall_s":1800001009.6,"settled_wall_s":1800001007.6,"is_over":false,"step_ns":7600000000,"recorded_step":-1,"goodput":{"wall_ns":10600000000,"productive_ns":6400000000,"slow_ns":1200000000,"startup_ns":0,"between_steps_ns":0,"stalled_ns":0,"restart_ns":0,"unreported_ns":3000000000},"lost":[{"rank":2,"cause":"host_cpu","lost_rank_seconds":4.8},{"rank":null,"cause":"host_cpu","lost_rank_seconds":0.0}],"findings_opened":4,"end":null,"is_concluded":false}','{"findings":[{"kind":"straggler","number":1,"ranks":[2],"nodes":[],"group":null,"since_step":60,"since_step_min":60,"since_step_max":60,"cause":"host_cpu","what":"than its 3 peers","who":"","node":"node-a","why":"its training thread computing longer, 20.0 ms of it in forward","also":[],"cost_of":"","headline":"Rank 2 (node-a): 1.57x slower than its 3 peers, steps 60-119 (3 s; 1969-12-31 23:59 to 1970-01-01 00:00 UTC)","figures":"Own time 55.0 ms per step, peers 35.0 ms","cost":"run 1.57x slower, 1.5 of 4 ranks wasted","sentence":"Rank 2 (node-a): 1.57x slower than its 3 peers, steps 60-119 (3 s; 1969-12-31 23:59 to 1970-01-01 00:00 UTC). Own time 55.0 ms per step, peers 35.0 ms. Cause host_cpu: its training thread computing longer, 20.0 ms of it in forward. Cost: run 1.57x slower, 1.5 of 4 ranks wasted.","suggestion":"Look at the line that samples name (rankscope status story --rank 2), else compare `py-spy top` with a peer''s. Move other threads that it names elsewhere.","severity":"warning","pattern":"steady","slowdown_ratio":1.5714285714285714,"run_slowdown_ratio":1.5714285714285714,"lost_rank_seconds":4.8,"evidence":{"backward_excess_ns":-20000000.0,"data_excess_ns":0.0,"forward_excess_ns":20000000.0,"optimizer_excess_ns":0.0,"other_excess_ns":0.0,"peers_cpu_ns":30000000.0,"cpu_excess_ns":20000000.0,"wait_caused_ns":60000000.0,"own_ns":55000000.0,"peers_own_ns":35000000.0,"robust_z":57.14285714285714,"persistence_ratio":1.0,"steps_judged":60.0,"steps_to_close":60.0},"details":{},"world_size":4,"since_wall_s":-3.3,"until_step":119,"until_wall_s":0.0,"lasted_s":3.3,"outcome":"","recurs":false,"is_paused":false,"lines":null},{"kind":"run_slowdown","number":2,"ranks":[],"nodes":[],"group":null,"since_step":120,"since_step_min":120,"since_step_max":120,"cause":"host_cpu","what":"than before, without what is due to rank 2,","who":"whole run","node":"","why":"their training threads computing 20.0 ms more per step than before","also":["no other rank to blame"],"cost_of":"","headline":"Whole run: 1.57x slower than before, without what is due to rank 2, steps 120-159 (2 s; 1969-12-31 23:59 to 1970-01-01 00:00 UTC)","figures":"Step 55.0 ms, before 35.0 ms","cost":"","sentence":"Whole run: 1.57x slower than before, without what is due to rank 2, steps 120-159 (2 s; 1969-12-31 23:59 to 1970-01-01 00:00 UTC). Step 55.0 ms, before 35.0 ms. Cause host_cpu: their training threads computing 20.0 ms more per step than before. No other rank to blame.","suggestion":"See what Python does more since that step (`py-spy top` on a rank): lists that grow, logging, callbacks, a schedule in the training code.","severity":"warning","pattern":"steady","slowdown_ratio":1.5714285714285714,"run_slowdown_ratio":1.0,"lost_rank_seconds":0.0,"evidence":{"data_added_ns":0.0,"transfer_added_ns":0.0,"cpu_added_ns":20000000.0,"before_ns":35000000.0,"step_before_ns":55000000.0,"after_ns":55000000.0,"robust_z":45.19851237430572,"steps_to_close":40.0},"details":{"blame":"nobody else"},"world_size":4,"since_wall_s":-2.2,"until_step":159,"until_wall_s":0.0,"lasted_s":2.2,"outcome":"","recurs":false,"is_paused":false,"lines":null},{"kind":"straggler","number":3,"ranks":[2],"nodes":[],"group":null,"since_step":100,"since_step_min":61,"since_step_max":100,"cause":"unattributed","what":"than its 11 peers every 20 steps","who":"","node":"node0","why":"no known cause","also":[],"cost_of":"","headline":"Rank 2 (node0): 1.60x slower than its 11 peers every 20 steps since about step 100 (61-100)","figures":"Own time 159.4 ms per step, peers 99.7 ms","cost":"run 1.27x slower","sentence":"Rank 2 (node0): 1.60x slower than its 11 peers every 20 steps since about step 100 (61-100). Own time 159.4 ms per step, peers 99.7 ms. No known cause. Cost: run 1.27x slower.","suggestion":"A capture shows what it does beyond a peer: rankscope capture RUN --ranks around:N --wait. Without a control token: torch.profiler on both, then rankscope analyze.","severity":"warning","pattern":"intermittent","slowdown_ratio":1.5986415136043093,"run_slowdown_ratio":1.2683806358683742,"lost_rank_seconds":null,"evidence":{"own_ns":159380476.39568803,"peers_own_ns":99697446.26257552,"robust_z":61.31012807377478,"persistence_ratio":0.5,"steps_judged":50.0,"steps_to_close":50.0,"gap_steps":20.0,"gap_known_steps":2.0},"details":{},"world_size":0,"since_wall_s":null,"until_step":null,"until_wall_s":null,"lasted_s":null,"outcome":"","recurs":false,"is_paused":false,"lines":null},{"kind":"slow_link","number":4,"ranks":[5],"nodes":[],"group":"mesh_dp/1,3,5,7","since_step":60,"since_step_min":60,"since_step_max":60,"cause":"slow_link","what":"than before","who":"links of rank 5 (node b)","node":"","why":"","also":["measured in mesh_dp/1,3,5,7; mesh_tp/4,5 slow too, on the same links"],"cost_of":"","headline":"Links of rank 5 (node b): 2.0x slower than before since step 60","figures":"Transfer 20.1 ms per step, compared with 10.0 ms","cost":"run 1.25x slower","sentence":"Links of rank 5 (node b): 2.0x slower than before since step 60. Transfer 20.1 ms per step, compared with 10.0 ms. Cost: run 1.25x slower. Measured in mesh_dp/1,3,5,7; mesh_tp/4,5 slow too, on the same links.","suggestion":"Measure these links outside the run with nccl-tests (all_reduce_perf). Slow there, too: replace the cable or card, or exclude the node. If not, other traffic disturbs them.","severity":"warning","pattern":"steady","slowdown_ratio":2.01096350730395,"run_slowdown_ratio":1.2505095927782806,"lost_rank_seconds":null,"evidence":{"transfer_ns":20072708.733110093,"peers_transfer_ns":9981637.488798138,"robust_z":101.096350730395,"persistence_ratio":1.0,"steps_judged":60.0,"algbw_bytes_per_s":49818886.59528621,"busbw_bytes_per_s":49818886.59528621,"transfer_excess_ns/mesh_dp/1,3,5,7":10091071.244311955,"transfer_excess_ns/mesh_tp/4,5":9899485.193032822,"past_transfer_ns/mesh_dp/1,3,5,7":9981637.488623345,"step_before_ns":60000000.0,"steps_to_close":60.0},"details":{"suspected rank":"5","groups":"mesh_dp/1,3,5,7; mesh_tp/4,5"},"world_size":0,"since_wall_s":null,"until_step":null,"until_wall_s":null,"lasted_s":null,"outcome":"","recurs":false,"is_paused":false,"lines":null}],"former_boots":[],"former_attempts":{"kept":[],"dropped":0},"start":null,"checkpoints":{"count":0,"duration_ns":0,"latest":[]},"compilations":{"start":null,"rank":0,"frames":[],"left_out":0},"not_judged":{},"medians":[[],{},{},null,null],"settings":{"changed":[],"past":[]},"pipeline":null,"layers":null,"experts":null}');
CREATE TABLE steps (
        run_id INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        step INTEGER NOT NULL,
        wall_s REAL NOT NULL,
        ranks INTEGER NOT NULL,
        median_ns INTEGER NOT NULL,
        longest_ns INTEGER NOT NULL,
        slowest_rank INTEGER NOT NULL,
        phases_ns TEXT NOT NULL,
        PRIMARY KEY (run_id, attempt, step)
    ) WITHOUT ROWID;
CREATE INDEX steps_by_time ON steps (wall_s);
CREATE INDEX rank_intervals_by_time ON rank_intervals (end_wall_s);
CREATE INDEX preflights_by_node ON preflights (node, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',1);
INSERT INTO "sqlite_sequence" VALUES('incidents',1);
COMMIT;
