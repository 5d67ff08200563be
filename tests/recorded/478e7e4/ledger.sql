BEGIN TRANSACTION;
CREATE TABLE attempts (
	id INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	run_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	started_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	outcome TEXT, 
	detail TEXT, 
	PRIMARY KEY (id)
);
INSERT INTO "attempts" VALUES(1,1,'0bb405ecc2cea596ecccd4919277f4fc',1,1,1.79608760669830703734e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(2,2,'f43d2ad826937db6313490876378d0dc',1,1,1.79608760669830703734e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(3,3,'0bb405ecc2cea596ecccd4919277f4fc',1,1,1.79608760671894073486e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(4,1,'c07a7ec5ba7e39dd90c387209dcaa4b3',1,1,1.79608760671894073486e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(5,2,'4f3e0f7642b2a49fe8b854fd7b3dd53f',1,1,1.79608763426660275456e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(6,3,'c07a7ec5ba7e39dd90c387209dcaa4b3',1,1,1.79608763426660275456e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(7,1,'6e9735cca6f6632e5e73f0d7320b9707',1,1,1.796087634573223114e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(8,2,'7b58084315e8de7d5d981db9e0f0fc6f',1,1,1.796087634573223114e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(9,3,'6e9735cca6f6632e5e73f0d7320b9707',1,1,1.79608763463755393028e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(10,1,'328c414d98d8d89495f2088048c24047',1,1,1.79608763463755393028e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(11,2,'c85c19e7ed414469db368c1e62e6f46f',1,1,1.79608763482944202424e+09,1.7960876349421110153e+09,'failed',NULL);
INSERT INTO "attempts" VALUES(12,3,'328c414d98d8d89495f2088048c24047',1,1,1.79608763482944202424e+09,1.7960876349421110153e+09,'done',NULL);
INSERT INTO "attempts" VALUES(13,1,'fae7225a13b792b05ea5dde29c729900',2,1,1.79608766558522510523e+09,1.79608769099939250945e+09,'done',NULL);
INSERT INTO "attempts" VALUES(14,2,'6b886124fa05b5493546188e723ffdc0',2,1,1.79608766558522510523e+09,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(15,3,'fae7225a13b792b05ea5dde29c729900',2,1,1.79608766561017704006e+09,1.79608769112455987932e+09,'done',NULL);
INSERT INTO "attempts" VALUES(16,1,'aa66625805e7a8f76a018c1f43ee8e83',2,1,1.79608766561017704006e+09,1.79608769103678607937e+09,'done',NULL);
INSERT INTO "attempts" VALUES(17,2,'76880f231b198af9a5ce0a73f316ecb7',2,1,1.79608769099733090401e+09,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(18,3,'aa66625805e7a8f76a018c1f43ee8e83',2,1,1.79608769099733090401e+09,1.79608769115754961969e+09,'done',NULL);
INSERT INTO "attempts" VALUES(19,1,'995c8471d8774d33589de94a34862b0a',2,1,1.79608769110940170283e+09,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(20,2,'4500aa010e06bbaa074391bdeffaf928',2,1,1.79608769110940170283e+09,NULL,NULL,NULL);
CREATE TABLE features (
	task_id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	state BLOB NOT NULL, 
	PRIMARY KEY (task_id, "key")
);
INSERT INTO "features" VALUES(1,'0bb405ecc2cea596ecccd4919277f4fc',X'383DFD1CD4BA31C0E9BCCB3652BA4D36033797BC373D6824BC3EA1B96E35D133');
INSERT INTO "features" VALUES(1,'6e9735cca6f6632e5e73f0d7320b9707',X'F33D74317FBA32C08CBC76398BB8A1350038ECBCD73CD3A9403E31B917381836');
INSERT INTO "features" VALUES(1,'328c414d98d8d89495f2088048c24047',X'B63C8E2EEDB630C05EBD5A39E7B930306F3965BD183D01AF593E96B608399637');
INSERT INTO "features" VALUES(1,'c07a7ec5ba7e39dd90c387209dcaa4b3',X'B13C9FB096B86BBFE6B85B3EC3B6853A5A39DFBC523DB4B02B3E1932243ADA37');
INSERT INTO "features" VALUES(1,'fae7225a13b792b05ea5dde29c729900',X'B33BB6A1C63609C0E5BA483E28AFBA399D3C17BE6B3B9FB7FB3A362F0F3CE639');
INSERT INTO "features" VALUES(1,'aa66625805e7a8f76a018c1f43ee8e83',X'293D30A400BA2FC0D2BC7038B1B938362338D3BC433DEA2DD33E9FB87B376933');
CREATE TABLE inputs (
	document_key TEXT NOT NULL, 
	occurrence INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	ordinal INTEGER NOT NULL, 
	file TEXT NOT NULL, 
	line INTEGER NOT NULL, 
	"offset" INTEGER, 
	fields JSON, 
	characters INTEGER NOT NULL, 
	inventory_id INTEGER NOT NULL, 
	PRIMARY KEY (document_key, occurrence)
);
INSERT INTO "inputs" VALUES('0bb405ecc2cea596ecccd4919277f4fc',0,'d0',0,'in.jsonl',1,0,'{"title": "piece 0"}',117,2);
INSERT INTO "inputs" VALUES('c07a7ec5ba7e39dd90c387209dcaa4b3',0,'d1',1,'in.jsonl',2,162,'{"title": "piece 1"}',1924,2);
INSERT INTO "inputs" VALUES('6e9735cca6f6632e5e73f0d7320b9707',0,'d2',2,'in.jsonl',3,2131,'{"title": "piece 2"}',207,2);
INSERT INTO "inputs" VALUES('328c414d98d8d89495f2088048c24047',0,'d3',3,'in.jsonl',4,2383,NULL,69,2);
INSERT INTO "inputs" VALUES('fae7225a13b792b05ea5dde29c729900',0,'d4',4,'in.jsonl',5,2477,'{"title": "piece 4"}',337,2);
INSERT INTO "inputs" VALUES('aa66625805e7a8f76a018c1f43ee8e83',0,'d5',5,'in.jsonl',6,2859,'{"title": "piece 5"}',148,2);
INSERT INTO "inputs" VALUES('995c8471d8774d33589de94a34862b0a',0,'d6',6,'in.jsonl',7,3052,'{"title": "piece 6"}',1985,2);
INSERT INTO "inputs" VALUES('c8c0be4680fb53f2ea257eb3c6095bff',0,'d7',7,'in.jsonl',8,5082,'{"title": "piece 7"}',228,2);
INSERT INTO "inputs" VALUES('0bb405ecc2cea596ecccd4919277f4fc',1,'d0',8,'in.jsonl',9,5355,'{"title": "piece 0"}',117,2);
CREATE TABLE inventories (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	complete INTEGER NOT NULL, 
	rows INTEGER NOT NULL, 
	rejected INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "inventories" VALUES(1,1,0,4,0);
INSERT INTO "inventories" VALUES(2,2,1,9,1);
CREATE TABLE meta (
	name TEXT NOT NULL, 
	value JSON NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "meta" VALUES('format',1);
INSERT INTO "meta" VALUES('resolved.attention','"sdpa"');
INSERT INTO "meta" VALUES('resolved.date','"2026-12-01"');
CREATE TABLE rejects (
	inventory_id INTEGER NOT NULL, 
	file TEXT NOT NULL, 
	line INTEGER NOT NULL, 
	"offset" INTEGER, 
	reason TEXT NOT NULL, 
	excerpt TEXT NOT NULL
);
INSERT INTO "rejects" VALUES(2,'in.jsonl',10,5517,'the text field ''text'' is missing; correct the row or set source.text_field','{"id": "no text"}');
CREATE TABLE replies (
	task_id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	step_key TEXT NOT NULL, 
	name TEXT NOT NULL, 
	span_start INTEGER, 
	span_end INTEGER, 
	generation JSON NOT NULL, 
	PRIMARY KEY (task_id, "key", step_key)
)
 WITHOUT ROWID

;
INSERT INTO "replies" VALUES(1,'c07a7ec5ba7e39dd90c387209dcaa4b3','7c4ac2ef43b9c7773e175a93e19f18fc','score/1',1859,1924,'{"request_id": 5, "token_ids": [], "scores": [-38.69517230987549, -35.678038120269775, -53.78079843521118], "features": "3DwZLdu5HMBbvUw3kbolLpk4+7wUPZyqtT7+uAo4yTU=", "finish_reason": "stop", "prompt_tokens": 156, "seconds": 0.0026780180000969267, "batch_rows": 1, "placement": "device", "error": null, "notes": []}');
INSERT INTO "replies" VALUES(1,'c07a7ec5ba7e39dd90c387209dcaa4b3','d8ad41c95cb04f10a5400f275aa37db6','score/0',0,1859,'{"request_id": 4, "token_ids": [], "scores": [-40.57582473754883, -38.982619285583496, -47.74353551864624], "features": "rzzmsIm4Y7+suIg+hLa+OmE53rxUPdKwJj4bMzk67jc=", "finish_reason": "stop", "prompt_tokens": 504, "seconds": 0.04960404799976459, "batch_rows": 1, "placement": "device", "error": null, "notes": []}');
CREATE TABLE results (
	task_id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	run_id INTEGER NOT NULL, 
	recorded_at FLOAT NOT NULL, 
	value JSON, 
	finish_reason TEXT, 
	probabilities JSON, 
	scores JSON, 
	raw TEXT, 
	tokens_in INTEGER NOT NULL, 
	tokens_out INTEGER NOT NULL, 
	tokens_dropped INTEGER NOT NULL, 
	parts INTEGER NOT NULL, 
	notes JSON, 
	failure_kind TEXT, 
	failure_message TEXT, 
	failure_attempt INTEGER, 
	seconds FLOAT NOT NULL, 
	placement TEXT NOT NULL, 
	batch_rows INTEGER NOT NULL, 
	PRIMARY KEY (task_id, "key")
)
 WITHOUT ROWID

;
INSERT INTO "results" VALUES(1,'0bb405ecc2cea596ecccd4919277f4fc',1,1.7960876349421110153e+09,'"sports"','stop','{"world": 0.02129359744030781, "sports": 0.9787052783329496, "business": 1.1242267425536533e-06}','{"world": -3.8493488411097943, "sports": -0.02152472535662041, "business": -13.698415098586601}',NULL,21,0,0,1,'null',NULL,NULL,NULL,2.74151199982952675782e-03,'device',1);
INSERT INTO "results" VALUES(1,'328c414d98d8d89495f2088048c24047',1,1.7960876349421110153e+09,'"sports"','stop','{"world": 0.025422637831783015, "sports": 0.9745758346950211, "business": 1.5274731958692776e-06}','{"world": -3.672115248668167, "sports": -0.025752943980667284, "business": -13.391895693767044}',NULL,15,0,0,1,'null',NULL,NULL,NULL,2.73456100012481329031e-03,'device',1);
INSERT INTO "results" VALUES(1,'6e9735cca6f6632e5e73f0d7320b9707',1,1.7960876349421110153e+09,'"sports"','stop','{"world": 0.3486852814649826, "sports": 0.6513146354723439, "business": 8.306267339574018e-08}','{"world": -1.0535855359276003, "sports": -0.4287624425132937, "business": -16.30367041294176}',NULL,44,0,0,1,'null',NULL,NULL,NULL,1.18980120000742317643e-02,'device',1);
INSERT INTO "results" VALUES(1,'aa66625805e7a8f76a018c1f43ee8e83',2,1.79608769103678607937e+09,'"sports"','stop','{"world": 0.019286137699617355, "sports": 0.9807137539310123, "business": 1.0836937036277929e-07}','{"world": -3.94836869504505, "sports": -0.019474652076299958, "business": -16.037720349097786}',NULL,31,0,0,1,'null',NULL,NULL,NULL,4.3150450999746681191e-02,'device',1);
INSERT INTO "results" VALUES(1,'c07a7ec5ba7e39dd90c387209dcaa4b3',1,1.7960876349421110153e+09,'"sports"','stop','{"world": 0.1643593914225506, "sports": 0.8355152124559289, "business": 0.0001253961215205498}','{"world": -1.8056998376839888, "sports": -0.17970672350510955, "business": -8.984032859107}',NULL,376,0,0,2,'null',NULL,NULL,NULL,5.22820659998615155927e-02,'device',1);
INSERT INTO "results" VALUES(1,'fae7225a13b792b05ea5dde29c729900',2,1.79608769099939250945e+09,'"sports"','stop','{"world": 0.05971332244576689, "sports": 0.9402833642802997, "business": 3.313273933489786e-06}','{"world": -2.8182001269337897, "sports": -0.06157399778339917, "business": -12.617573753642775}',NULL,65,0,0,1,'null',NULL,NULL,NULL,5.9013327999764442211e-02,'device',1);
INSERT INTO "results" VALUES(2,'4f3e0f7642b2a49fe8b854fd7b3dd53f',1,1.7960876349421110153e+09,'"mornin''''''''''''''''''''''"','length','null','null',NULL,374,12,0,1,'null',NULL,NULL,NULL,1.45810192999761056853e-01,'device',1);
INSERT INTO "results" VALUES(2,'7b58084315e8de7d5d981db9e0f0fc6f',1,1.7960876349421110153e+09,'"mornin~K\ufffdK mornin\ufffd mornin\ufffd\ufffdryhar"','length','null','null',NULL,44,12,0,1,'null',NULL,NULL,NULL,1.01634950999596185283e-01,'device',1);
INSERT INTO "results" VALUES(2,'c85c19e7ed414469db368c1e62e6f46f',1,1.7960876349421110153e+09,'null',NULL,'null','null',NULL,0,0,0,0,'null','missing_field','the instructions of task ''summary'' need a field of the document: ''title'' is undefined',1,0.0,'device',1);
INSERT INTO "results" VALUES(2,'f43d2ad826937db6313490876378d0dc',1,1.7960876349421110153e+09,'"or:~ mornin\ufffd\ufffdPiv~ morninN mornin"','length','null','null',NULL,21,12,0,1,'null',NULL,NULL,NULL,1.42287810000198078341e-01,'device',1);
INSERT INTO "results" VALUES(3,'0bb405ecc2cea596ecccd4919277f4fc',1,1.7960876349421110153e+09,'"\ufffd\ufffd\u0013\u0189\ufffd"','length','null','null',NULL,21,6,0,1,'null',NULL,NULL,NULL,2.5254373000279883854e-02,'device',1);
INSERT INTO "results" VALUES(3,'328c414d98d8d89495f2088048c24047',1,1.7960876349421110153e+09,'"K\ufffd\ufffd\ufffd''"','length','null','null',NULL,15,6,0,1,'null',NULL,NULL,NULL,4.7330110000075364951e-02,'device',1);
INSERT INTO "results" VALUES(3,'6e9735cca6f6632e5e73f0d7320b9707',1,1.7960876349421110153e+09,'"\ufffd\ufffdK\u007f\ufffd mornin"','length','null','null',NULL,44,6,0,1,'null',NULL,NULL,NULL,3.50533739997445081826e-02,'device',1);
INSERT INTO "results" VALUES(3,'aa66625805e7a8f76a018c1f43ee8e83',2,1.79608769115754961969e+09,'"\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd"','length','null','null',NULL,31,6,0,1,'null',NULL,NULL,NULL,2.67604680002477834932e-02,'device',1);
INSERT INTO "results" VALUES(3,'c07a7ec5ba7e39dd90c387209dcaa4b3',1,1.7960876349421110153e+09,'"mornin\f\ufffd mornin~\ufffd"','length','null','null',NULL,374,6,0,1,'null',NULL,NULL,NULL,2.24332700004197249654e-02,'device',1);
INSERT INTO "results" VALUES(3,'fae7225a13b792b05ea5dde29c729900',2,1.79608769112455987932e+09,'"\ufffdPgo mornin\ufffdP"','length','null','null',NULL,65,6,0,1,'null',NULL,NULL,NULL,4.5013428999936877517e-02,'device',1);
CREATE TABLE runs (
	id INTEGER NOT NULL, 
	started_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	exit_code INTEGER, 
	reason TEXT, 
	facts JSON NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "runs" VALUES(1,1.7960876050052185059e+09,1.79608763984950375557e+09,3,'some failed','{"pid": 30227, "command": ["make.py"], "config": {"model": {"id": "model", "revision": null, "quantization": "none", "trust_remote_code": false, "template_options": {}, "context_tokens": null, "dtype": "float32", "attention": "auto", "device_map": "auto", "max_memory": null}, "kv_cache": {"placement": "auto", "lossy_last_resort": false, "store": {"path": null, "quota": 20000000000, "keep_free": 1073741824, "documents": "always", "format": "as_computed", "checkpoint_seconds": 10.0}}, "source": {"path": ["{folder}/in.jsonl"], "format": "auto", "id_field": "id", "text_field": "text", "records_field": null, "subset": null, "split": "train", "revision": null, "group_by": null, "max_rejects": 1000}, "tasks": [{"name": "topic", "instructions": null, "system": null, "chunk_tokens": null, "overlap_tokens": 0, "max_parts": 1000, "kind": "label", "labels": {"world": null, "sports": null, "business": null}, "label_names": "as_written", "cue": null, "multi": false, "examples": null, "gold": null, "label_field": "label", "examples_per_label": null, "examples_tokens": 1024, "examples_seed": 0, "long_documents": "aggregate", "abstain_below": 0.34, "target_accuracy": null, "calibration": "auto", "expected_shares": null, "score_tolerance": 0.001}, {"name": "summary", "instructions": "Sum up {{ title }}.", "system": null, "chunk_tokens": null, "overlap_tokens": 0, "max_parts": 1000, "kind": "summarize", "max_output_tokens": 12, "long_documents": "map_reduce"}, {"name": "short", "instructions": null, "system": null, "chunk_tokens": null, "overlap_tokens": 0, "max_parts": 1000, "kind": "summarize", "max_output_tokens": 6, "long_documents": "fail"}], "generation": {"layout": "document_first", "sampling": null}, "engine": {"decoder": "auto", "batch_rows": 1, "batch_tokens": null, "prefill_chunk_tokens": null, "weights": "auto", "prepared_quota": null, "threads": 1, "stall_seconds": 1800.0}, "run": {"directory": "run", "deadline": null, "max_attempts": 3, "keep_free_disk": 100000000, "keep_free_memory": 134217728}}, "versions": {"overnight": "0.1.0", "torch": "2.13.0+cpu", "transformers": "5.24.0", "accelerate": "1.15.0", "bitsandbytes": "0.50.2", "tokenizers": "0.23.3", "safetensors": "0.8.0", "huggingface-hub": "2.4.0", "datasets": "5.2.0", "pyarrow": "26.0.1", "prefect": "3.9.1", "python": "3.11.7"}, "model": {"id": "model", "revision": null, "weights": {"weights": "1121a6ae3694720fcc36ed98e462fd4e"}, "tokenizer": "690b035d81cec2ce2d1469f1a36f1109"}, "notes": [], "plan": {"dtype": "float32", "quantization": "none", "placement": "device", "layout": "document_first", "context_tokens": 512, "max_batch_rows": 1, "batch_tokens": 512, "prefill_chunk_tokens": 1024, "kv_bytes_per_token": 64, "threads": 1, "lossy_last_resort": false, "streaming": null, "reasons": ["0.00 billion parameters (MQA, 1 layers (1 full), 1 KV head of 8): 49 KiB of weights in none (float32), 32 KiB of cache for one row of 512 tokens and about 3 MiB of activations; 16.8 GiB of RAM and 69.4 GiB of disk may be used", "all of it fits in this machine''s memory: 3 MiB of 16.8 GiB that may be used", "1 row of 512 tokens decode together in the room that is left", "prompts up to 512 tokens", "KV cache on the device: without a GPU there is nothing to offload from"]}, "forecast": {"verdict": "resident", "documents": 12, "sampled": 4, "speeds": "unknown", "quantities": {"parameters": 12592, "kv_bytes_per_token": 64, "fixed_bytes_per_row": 0, "weights_on_device": 50368, "weights_in_ram": 0, "weights_on_disk": 0, "cache": 32768, "cache_room": 9020824377, "activations": 4568342, "vram_peak": 0, "ram_peak": 463055318, "ram_mapped": 0, "disk_peak": 40128, "rows": 1, "load": null, "prefill_of_full_context": null, "decode_step": null, "decode_rate": null, "transferred_a_step": 0, "transfer_a_step": null, "slowdown": null, "work": null, "work_error": null, "until_deadline": null, "spare_time": null, "documents_an_hour": null, "reuse_crossover": null, "store": 40128}}, "loaded": {"weights_bytes": 50400, "embeddings_bytes": 20480, "head_bytes": 20480, "decoder_linears": 7, "linear4bit": 0, "linear8bit": 0, "dtype": "float32", "quantization": {"type": "none"}, "attention": "sdpa", "device_map": {"": "cpu"}, "bytes_by_device": {"cpu": 50400}, "placement": "0 MiB of weights on cpu", "load_seconds": 0.322, "peak_load_bytes": 470949888, "shipped_generation_settings": {"_from_model_config": true, "output_attentions": false, "output_hidden_states": false, "transformers_version": "5.24.0", "use_cache": true}, "engine": "continuous batching over packed passes", "kv_store": "run/kv, as_computed, documents always", "process_bytes": 405864448}, "store": {"loaded": 1, "shared": 3, "recomputed": 0, "computed": 1, "resumed": 0, "resumed_text_tokens": 0, "loaded_tokens": 366, "computed_tokens": 380, "saved_seconds": 0.036969528921277785, "prefill_tokens_per_second": 21297, "hits": 1, "misses": 1, "loaded_bytes": 25428, "stored": 2, "stored_bytes": 51672, "evicted": 0, "evicted_bytes": 0, "declined": {}, "warnings": {}, "notes": [], "used_bytes": 98304}, "waiting": {"seconds": 0.793, "waited_seconds": 0.021}, "peaks": {"ram_bytes": 480800768, "vram_bytes": 0}, "calibration": {"topic": "not calibrated: 4 documents are finished, and over the batch at least 32 are needed"}}');
INSERT INTO "runs" VALUES(2,1.79608766515766620636e+09,NULL,NULL,NULL,'{"pid": 30750, "command": ["{folder}/make.py", "killed"], "config": {"model": {"id": "model", "revision": null, "quantization": "none", "trust_remote_code": false, "template_options": {}, "context_tokens": null, "dtype": "float32", "attention": "auto", "device_map": "auto", "max_memory": null}, "kv_cache": {"placement": "auto", "lossy_last_resort": false, "store": {"path": null, "quota": 20000000000, "keep_free": 1073741824, "documents": "always", "format": "as_computed", "checkpoint_seconds": 10.0}}, "source": {"path": ["{folder}/in.jsonl"], "format": "auto", "id_field": "id", "text_field": "text", "records_field": null, "subset": null, "split": "train", "revision": null, "group_by": null, "max_rejects": 1000}, "tasks": [{"name": "topic", "instructions": null, "system": null, "chunk_tokens": null, "overlap_tokens": 0, "max_parts": 1000, "kind": "label", "labels": {"world": null, "sports": null, "business": null}, "label_names": "as_written", "cue": null, "multi": false, "examples": null, "gold": null, "label_field": "label", "examples_per_label": null, "examples_tokens": 1024, "examples_seed": 0, "long_documents": "aggregate", "abstain_below": 0.34, "target_accuracy": null, "calibration": "auto", "expected_shares": null, "score_tolerance": 0.001}, {"name": "summary", "instructions": "Sum up {{ title }}.", "system": null, "chunk_tokens": null, "overlap_tokens": 0, "max_parts": 1000, "kind": "summarize", "max_output_tokens": 12, "long_documents": "map_reduce"}, {"name": "short", "instructions": null, "system": null, "chunk_tokens": null, "overlap_tokens": 0, "max_parts": 1000, "kind": "summarize", "max_output_tokens": 6, "long_documents": "fail"}], "generation": {"layout": "document_first", "sampling": null}, "engine": {"decoder": "transformers", "batch_rows": 1, "batch_tokens": null, "prefill_chunk_tokens": null, "weights": "auto", "prepared_quota": null, "threads": 1, "stall_seconds": 1800.0}, "run": {"directory": "run", "deadline": null, "max_attempts": 3, "keep_free_disk": 100000000, "keep_free_memory": 134217728}}, "versions": {"overnight": "0.1.0", "torch": "2.13.0+cpu", "transformers": "5.24.0", "accelerate": "1.15.0", "bitsandbytes": "0.50.2", "tokenizers": "0.23.3", "safetensors": "0.8.0", "huggingface-hub": "2.4.0", "datasets": "5.2.0", "pyarrow": "26.0.1", "prefect": "3.9.1", "python": "3.11.7"}, "model": {"id": "model", "revision": null, "weights": {"weights": "1121a6ae3694720fcc36ed98e462fd4e"}, "tokenizer": "690b035d81cec2ce2d1469f1a36f1109"}, "notes": [], "plan": {"dtype": "float32", "quantization": "none", "placement": "device", "layout": "document_first", "context_tokens": 512, "max_batch_rows": 1, "batch_tokens": 512, "prefill_chunk_tokens": 1024, "kv_bytes_per_token": 64, "threads": 1, "lossy_last_resort": false, "streaming": null, "reasons": ["0.00 billion parameters (MQA, 1 layers (1 full), 1 KV head of 8): 49 KiB of weights in none (float32), 32 KiB of cache for one row of 512 tokens and about 3 MiB of activations; 16.0 GiB of RAM and 69.2 GiB of disk may be used", "all of it fits in this machine''s memory: 3 MiB of 16.0 GiB that may be used", "1 row of 512 tokens decode together in the room that is left", "prompts up to 512 tokens", "KV cache on the device: without a GPU there is nothing to offload from"]}, "forecast": {"verdict": "resident", "documents": 12, "sampled": 9, "speeds": "unknown", "quantities": {"parameters": 12592, "kv_bytes_per_token": 64, "fixed_bytes_per_row": 0, "weights_on_device": 50368, "weights_in_ram": 0, "weights_on_disk": 0, "cache": 32768, "cache_room": 8613630163, "activations": 4342424, "vram_peak": 0, "ram_peak": 462718808, "ram_mapped": 0, "disk_peak": 45037, "rows": 1, "load": null, "prefill_of_full_context": null, "decode_step": null, "decode_rate": null, "transferred_a_step": 0, "transfer_a_step": null, "slowdown": null, "work": null, "work_error": null, "until_deadline": null, "spare_time": null, "documents_an_hour": null, "reuse_crossover": null, "store": 45037}}, "loaded": {"weights_bytes": 50400, "embeddings_bytes": 20480, "head_bytes": 20480, "decoder_linears": 7, "linear4bit": 0, "linear8bit": 0, "dtype": "float32", "quantization": {"type": "none"}, "attention": "sdpa", "device_map": {"": "cpu"}, "bytes_by_device": {"cpu": 50400}, "placement": "0 MiB of weights on cpu", "load_seconds": 0.346, "peak_load_bytes": 471142400, "shipped_generation_settings": {"_from_model_config": true, "output_attentions": false, "output_hidden_states": false, "transformers_version": "5.24.0", "use_cache": true}, "engine": "texts by generate of transformers, scores in static batches", "kv_store": "run/kv, as_computed, documents always", "process_bytes": 406011904}}');
CREATE TABLE tasks (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	identity JSON NOT NULL, 
	fields JSON NOT NULL, 
	active INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "tasks" VALUES(1,'topic',1,'label','0066927a9a7c160b2ec6078d73c89ffe','{"model": {"id": "model", "revision": null, "weights": {"weights": "1121a6ae3694720fcc36ed98e462fd4e"}, "tokenizer": "690b035d81cec2ce2d1469f1a36f1109"}, "quantization": "none", "dtype": "float32", "attention": "sdpa", "template_options": {}, "context_tokens": 512, "layout": "document_first", "date": "2026-12-01", "sampling": null, "prompt_format": 2, "task": {"instructions": null, "system": null, "chunk_tokens": null, "overlap_tokens": 0, "max_parts": 1000, "kind": "label", "labels": [["world", null], ["sports", null], ["business", null]], "label_names": "as_written", "cue": null, "multi": false, "long_documents": "aggregate", "score_tolerance": 0.0}, "instructions": "Read the text below and decide which category it belongs to."}','[]',1);
INSERT INTO "tasks" VALUES(2,'summary',1,'summarize','4c05263d8fd98d48ccbeb04a7c764a0b','{"model": {"id": "model", "revision": null, "weights": {"weights": "1121a6ae3694720fcc36ed98e462fd4e"}, "tokenizer": "690b035d81cec2ce2d1469f1a36f1109"}, "quantization": "none", "dtype": "float32", "attention": "sdpa", "template_options": {}, "context_tokens": 512, "layout": "document_first", "date": "2026-12-01", "sampling": null, "prompt_format": 2, "task": {"instructions": "Sum up {{ title }}.", "system": null, "chunk_tokens": null, "overlap_tokens": 0, "max_parts": 1000, "kind": "summarize", "max_output_tokens": 12, "long_documents": "map_reduce"}, "instructions": "Sum up {{ title }}."}','["title"]',1);
INSERT INTO "tasks" VALUES(3,'short',1,'summarize','cfaa66b114df7c2823d32dda27be6f5c','{"model": {"id": "model", "revision": null, "weights": {"weights": "1121a6ae3694720fcc36ed98e462fd4e"}, "tokenizer": "690b035d81cec2ce2d1469f1a36f1109"}, "quantization": "none", "dtype": "float32", "attention": "sdpa", "template_options": {}, "context_tokens": 512, "layout": "document_first", "date": "2026-12-01", "sampling": null, "prompt_format": 2, "task": {"instructions": null, "system": null, "chunk_tokens": null, "overlap_tokens": 0, "max_parts": 1000, "kind": "summarize", "max_output_tokens": 6, "long_documents": "fail"}, "instructions": "Summarize the following text in two or three sentences. Keep the names, numbers and conclusions that matter."}','[]',1);
CREATE TABLE views (
	id INTEGER NOT NULL, 
	task_id INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	calibration TEXT NOT NULL, 
	threshold FLOAT, 
	facts JSON NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "views" VALUES(1,1,1.79608763990036439895e+09,'{"assumption": "nothing is assumed", "bias": [0.0, 0.0, 0.0], "cross_validation": null, "feature_weights": [], "fitted_on": 0, "form": "the model''s own scores, normalized over the labels", "format": 1, "gold": 0, "labels": ["world", "sports", "business"], "method": "none", "notes": [], "seed": 0, "tried": [], "weights": [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]}',0.34,'{"sentence": "calibration: none (the model''s own scores, normalized over the labels); nothing is assumed", "final": false, "documents": 4, "by": "configuration", "gold": 0, "left_out": {}, "gold_labels": {}, "held_out": {}}');
CREATE TABLE work (
	task_id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	document_key TEXT NOT NULL, 
	inventory_id INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	characters INTEGER NOT NULL, 
	attempts INTEGER DEFAULT '0' NOT NULL, 
	crashes INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (task_id, "key"), 
	FOREIGN KEY(task_id) REFERENCES tasks (id)
);
INSERT INTO "work" VALUES(1,'0bb405ecc2cea596ecccd4919277f4fc','0bb405ecc2cea596ecccd4919277f4fc',2,'done',117,1,0);
INSERT INTO "work" VALUES(1,'c07a7ec5ba7e39dd90c387209dcaa4b3','c07a7ec5ba7e39dd90c387209dcaa4b3',2,'done',1924,1,0);
INSERT INTO "work" VALUES(1,'6e9735cca6f6632e5e73f0d7320b9707','6e9735cca6f6632e5e73f0d7320b9707',2,'done',207,1,0);
INSERT INTO "work" VALUES(1,'328c414d98d8d89495f2088048c24047','328c414d98d8d89495f2088048c24047',2,'done',69,1,0);
INSERT INTO "work" VALUES(2,'f43d2ad826937db6313490876378d0dc','0bb405ecc2cea596ecccd4919277f4fc',2,'done',117,1,0);
INSERT INTO "work" VALUES(2,'4f3e0f7642b2a49fe8b854fd7b3dd53f','c07a7ec5ba7e39dd90c387209dcaa4b3',2,'done',1924,1,0);
INSERT INTO "work" VALUES(2,'7b58084315e8de7d5d981db9e0f0fc6f','6e9735cca6f6632e5e73f0d7320b9707',2,'done',207,1,0);
INSERT INTO "work" VALUES(2,'c85c19e7ed414469db368c1e62e6f46f','328c414d98d8d89495f2088048c24047',2,'failed',69,1,0);
INSERT INTO "work" VALUES(3,'0bb405ecc2cea596ecccd4919277f4fc','0bb405ecc2cea596ecccd4919277f4fc',2,'done',117,1,0);
INSERT INTO "work" VALUES(3,'c07a7ec5ba7e39dd90c387209dcaa4b3','c07a7ec5ba7e39dd90c387209dcaa4b3',2,'done',1924,1,0);
INSERT INTO "work" VALUES(3,'6e9735cca6f6632e5e73f0d7320b9707','6e9735cca6f6632e5e73f0d7320b9707',2,'done',207,1,0);
INSERT INTO "work" VALUES(3,'328c414d98d8d89495f2088048c24047','328c414d98d8d89495f2088048c24047',2,'done',69,1,0);
INSERT INTO "work" VALUES(1,'fae7225a13b792b05ea5dde29c729900','fae7225a13b792b05ea5dde29c729900',2,'done',337,1,0);
INSERT INTO "work" VALUES(1,'aa66625805e7a8f76a018c1f43ee8e83','aa66625805e7a8f76a018c1f43ee8e83',2,'done',148,1,0);
INSERT INTO "work" VALUES(1,'995c8471d8774d33589de94a34862b0a','995c8471d8774d33589de94a34862b0a',2,'running',1985,1,0);
INSERT INTO "work" VALUES(1,'c8c0be4680fb53f2ea257eb3c6095bff','c8c0be4680fb53f2ea257eb3c6095bff',2,'pending',228,0,0);
INSERT INTO "work" VALUES(2,'6b886124fa05b5493546188e723ffdc0','fae7225a13b792b05ea5dde29c729900',2,'running',337,1,0);
INSERT INTO "work" VALUES(2,'76880f231b198af9a5ce0a73f316ecb7','aa66625805e7a8f76a018c1f43ee8e83',2,'running',148,1,0);
INSERT INTO "work" VALUES(2,'4500aa010e06bbaa074391bdeffaf928','995c8471d8774d33589de94a34862b0a',2,'running',1985,1,0);
INSERT INTO "work" VALUES(2,'0009a5038b9a715377a2a1f2eafd4f65','c8c0be4680fb53f2ea257eb3c6095bff',2,'pending',228,0,0);
INSERT INTO "work" VALUES(3,'fae7225a13b792b05ea5dde29c729900','fae7225a13b792b05ea5dde29c729900',2,'done',337,1,0);
INSERT INTO "work" VALUES(3,'aa66625805e7a8f76a018c1f43ee8e83','aa66625805e7a8f76a018c1f43ee8e83',2,'done',148,1,0);
INSERT INTO "work" VALUES(3,'995c8471d8774d33589de94a34862b0a','995c8471d8774d33589de94a34862b0a',2,'pending',1985,0,0);
INSERT INTO "work" VALUES(3,'c8c0be4680fb53f2ea257eb3c6095bff','c8c0be4680fb53f2ea257eb3c6095bff',2,'pending',228,0,0);
CREATE UNIQUE INDEX tasks_by_name ON tasks (name, version);
CREATE INDEX inputs_by_id ON inputs (id);
CREATE INDEX inputs_in_order ON inputs (ordinal);
CREATE INDEX ix_rejects_inventory_id ON rejects (inventory_id);
CREATE INDEX attempts_by_work ON attempts (task_id, "key");
CREATE INDEX attempts_open ON attempts (task_id, "key") WHERE outcome IS NULL;
CREATE INDEX ix_views_task_id ON views (task_id);
CREATE INDEX work_by_state ON work (task_id, state);
COMMIT;
